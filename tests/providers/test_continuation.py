"""One continuation for several places: it answers as if each had been asked by itself, in fewer requests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toys
from asked import Inquiry, inquired
from cosd_providers import Proposal, Question, continuation
from cosd_providers.continuation import Continuation
from cosd_providers.contract import Token
from cosd_providers.scoring import TIES, Chain, Choice, Position, answer
from cosd_providers.testing import Model, TextModel
from cosd_providers.text import sendable


@dataclass
class Server:
    """A model that goes on from ids, and encodes.

    Attributes:
        asked: for each request the place, how many tokens of its chain were there, and how many were wanted.
        encoded: the places that were encoded.
        most: how many tokens an answer may have.
        context: how many tokens fit.
    """

    model: Model
    prompt: str
    text: bytes
    most: int = 10**6
    context: int = 10**6
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)

    async def go_on(self, chains: list[Chain]) -> list[list[Position]]:
        self.asked += [(chain.question.start, len(chain.ids), chain.wanted) for chain in chains]
        return [self._positions(chain) for chain in chains]

    async def encode(self, place: int) -> list[int]:
        self.encoded.append(place)
        return self._ids(place)

    def _ids(self, place: int) -> list[int]:
        return list(self.model.encode((self.prompt + sendable(self.text[:place])).encode()))

    def _positions(self, chain: Chain) -> list[Position]:
        ids, found = [*self._ids(chain.question.start), *chain.ids], list[Position]()
        while len(found) < min(chain.wanted, self.most) and len(ids) < self.context:
            probs = self.model.next(ids)
            best = sorted(range(len(probs)), key=lambda n: (-probs[n], n))[: max(TIES, probs.count(max(probs)))]
            choices = [self._choice(n, probs[n]) for n in best]
            found.append(Position(choices[0], choices))
            ids.append(best[0])
            if best[0] in self.model.end_ids:
                break
        return found

    def _choice(self, n: int, prob: float) -> Choice:
        end = n in self.model.end_ids
        return Choice(n, Token(b"" if end else self.model.tokens[n], prob, end))


async def continued(server: Server, questions: Sequence[Question], *, known: bool = True) -> list[Proposal | None]:
    encode = server.encode if known else None
    return await Continuation(server.text, questions, server.go_on, encode).answer()


@given(inquired(toys.models(longest_merge=6)), st.integers(1, 9), st.sampled_from((30, 10**6)), st.booleans())
async def test_it_answers_as_if_each_place_was_asked(
    case: tuple[toys.ToyModel, Inquiry], most: int, context: int, known: bool
) -> None:
    model, (prompt, text, questions) = case
    server = Server(toys.Plain(model), prompt.decode(), text, most, context)
    expected = await answer(questions, server.go_on)
    with patch.object(continuation, "_BYTES", 1):  # as short as the tokens of these models
        assert await continued(server, questions, known=known) == expected


def text_of(count: int) -> tuple[list[str], bytes, list[int]]:
    words = [f" w{n}" for n in range(count)]
    starts = [len("".join(words[:n])) for n in range(count)]
    return words, "".join(words).encode(), starts


def at(text: bytes, starts: Sequence[int]) -> list[Question]:
    return [Question(start, (text[start : start + 3],)) for start in starts]


async def test_one_request_answers_all_places_of_the_models_own_text() -> None:
    words, text, starts = text_of(6)
    server = Server(TextModel({"Q": words}), "Q", text)
    found = await continued(server, at(text, starts))
    assert [one.tokens[0].data.decode() for one in found if one] == words
    assert server.asked == [(0, 0, 6)]  # from the first place to the last, and its answer
    assert sorted(server.encoded) == starts


async def test_after_a_difference_the_next_place_begins_anew() -> None:
    _, text, starts = text_of(6)
    own = {"Q": [" w0", " w1", " x"], "Q w0 w1 w2": [" w3", " w4"], "Q w0 w1 w2 w3 w4": [" y"]}
    server = Server(TextModel(own), "Q", text)
    found = await continued(server, at(text, starts))
    assert [one.tokens[0].data for one in found if one] == [b" w0", b" w1", b" x", b" w3", b" w4", b" y"]
    assert [place for place, *_ in server.asked] == [0, starts[3]]
    assert sorted(server.encoded) == starts  # each once


async def test_places_that_were_not_reached_are_not_encoded() -> None:
    _, text, starts = text_of(6)
    server = Server(TextModel({"Q": [" w0", " x"], "Q w0 w1": []}), "Q", text)
    await continued(server, at(text, [starts[0], starts[4], starts[5]]))
    assert server.encoded == []


async def test_where_the_model_would_cut_the_text_otherwise_the_place_is_asked() -> None:
    """It writes "a" and "b", and reads "ab"."""

    class Cut:
        tokens = (b"Q", b"ab", b"a", b"b", b"c", b"d", b"")
        end_ids = (6,)

        def encode(self, text: bytes) -> list[int]:
            ids = list[int]()
            while text:
                ids.append(next(n for n, token in enumerate(self.tokens) if text.startswith(token)))
                text = text[len(self.tokens[ids[-1]]) :]
            return ids

        def next(self, ids: Sequence[int]) -> Sequence[float]:
            after = {(0,): 2, (0, 2): 3, (0, 2, 3): 4, (0, 1): 5}.get(tuple(ids), 6)
            return [float(n == after) for n in range(len(self.tokens))]

    server = Server(Cut(), "Q", b"abc")
    found = await continued(server, [Question(0, (b"a", b"b", b"c"), word=True), Question(2, (b"c",))])
    assert [one.tokens[0].data for one in found if one] == [b"a", b"d"]  # it has written "c" there, and would say "d"
    assert [place for place, *_ in server.asked] == [0, 2]


async def test_where_encodings_cannot_be_known_each_place_is_asked_by_itself() -> None:
    words, text, starts = text_of(3)
    server = Server(TextModel({"Q": words}), "Q", text)
    await continued(server, at(text, starts), known=False)
    assert server.asked == [(start, 0, 1) for start in starts]
    server = Server(TextModel({"Q": words}), "Q", text)

    async def unknown(place: int) -> None:
        return None

    found = await Continuation(text, at(text, starts), server.go_on, unknown).answer()
    assert [one.tokens[0].data.decode() for one in found if one] == words
    assert [place for place, *_ in server.asked] == starts


async def test_it_grows_while_the_text_is_the_models_own() -> None:
    words, text, starts = text_of(90)
    server = Server(TextModel({"Q": words}), "Q", text)
    await continued(server, at(text, [0, starts[15], starts[16], starts[45], starts[46], starts[60], starts[-1]]))
    assert [wanted for *_, wanted in server.asked] == [16, 32, 39]
    server = Server(TextModel({"Q": [*words[:20], " x"]}), "Q", text)
    await continued(server, at(text, [0, starts[15], starts[16], starts[45], starts[46], starts[-1]]))
    assert [wanted for *_, wanted in server.asked][:3] == [16, 32, 16]  # it differed


@pytest.mark.parametrize("comparable", [True, False])
async def test_what_stands_for_a_token(comparable: bool) -> None:
    """Its bytes may; and what is equal to nothing answers nothing but its own place."""
    words, text, starts = text_of(3)
    server = Server(TextModel({"Q": words}), "Q", text)

    async def encode(place: int) -> list[bytes]:
        return [server.model.tokens[n] for n in await server.encode(place)]

    def key(choice: Choice) -> Hashable:
        return choice.token.data if comparable else object()

    found = await Continuation(text, at(text, starts), server.go_on, encode, key=key).answer()
    assert [one.tokens[0].data.decode() for one in found if one] == words
    assert [place for place, *_ in server.asked] == (starts[:1] if comparable else starts)
