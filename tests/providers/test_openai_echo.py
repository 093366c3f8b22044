"""Echoes that are not what they should be: they are not used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_providers import Question, ResponseError, UnsupportedError, Usage
from cosd_providers.contract import Context, Piece
from cosd_providers.engines.openai import Dialect, OpenAICompatible
from fakes.openai import FakeOpenAI
from support.asked import close, inquiries
from support.drawn import partly
from toys import toy_models as toys

URL = "http://gpu:8000"
TEXT = "ab a b1 11 ab, a b a1b ba 1 a b aa 1b"
TOY = Dialect("toy", known_text=TEXT, sample=TEXT, shows_parts=True, probs=True)


class Local:
    """A model's own tokenizer."""

    name = "local"
    beginning = 0

    def __init__(self, model: toys.Plain) -> None:
        self.model = model

    def encode(self, text: str) -> list[Piece]:
        return [Piece(n, self.model.tokens[n]) for n in self.model.encode(text.encode())]

    def token(self, id: int) -> bytes | None:
        return bytes(self.model.tokens[id])


def talkative(seed: int, fluency: int) -> toys.Plain:
    """A model that continues nearly every text."""
    vocabulary = toys.Vocabulary((b"a", b"b", b" ", b"1", b",", b" a", b"ab", b" b", b"b1", b""), 9)
    return toys.Plain(toys.ToyModel(vocabulary, seed=seed, fluency=fluency))


def over(server: FakeOpenAI, strategy: Any, dialect: Dialect = TOY) -> OpenAICompatible:
    return OpenAICompatible(
        URL,
        http_client=server.client(),
        dialect=dialect,
        strategy=strategy,
        tokenizer=Local(server.model),  # type: ignore[arg-type]  # it is a Plain
    )


@given(st.integers(0, 10**6), st.sampled_from((0, 8)), inquiries(), st.sampled_from(("legacy", "chat")), st.booleans())
async def test_an_echo_gives_what_single_prompts_give(
    seed: int, fluency: int, inquiry: tuple[bytes, bytes, list[Question]], shape: Any, shows: bool
) -> None:
    prompt, text, questions = inquiry
    model = talkative(seed, fluency)
    simple = bytes(set(b"ab1, "))
    assume(prompt and not {*prompt, *text} - {*simple})
    way: dict[str, Any] = {"shape": shape, "beginning": True, "shows_beginning": shows}
    server = FakeOpenAI(model, **way)
    provider = over(server, "echo")
    try:
        ours = await provider.propose(Context(prompt.decode(), text), questions, usage=Usage())
    except UnsupportedError:
        assume(False)
    theirs = await over(FakeOpenAI(model, **way), "singles").propose(
        Context(prompt.decode(), text), questions, usage=Usage()
    )
    assert (await provider.describe()).capabilities.score
    for one, other in zip(ours, theirs, strict=True):
        assert (one and one.start) == (other and other.start)
        close(one.tokens if one else (), other.tokens if other else ())


@pytest.mark.parametrize("beginning", [True, False])
@pytest.mark.parametrize("off", [1, 2, 3])
async def test_a_shifted_echo_is_not_used(off: int, beginning: bool) -> None:
    class Further(FakeOpenAI):
        def _echoed(self, ids: Any, count: int) -> Any:
            shown = super()._echoed(ids, count)
            return [type(one)(one.text, two.entry) for one, two in zip(shown, shown[off:] + shown[:off], strict=True)]

    server = Further(talkative(5, 0), beginning=beginning)
    with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text"):
        await over(server, "echo").propose(Context("a", b" ab"), [Question(0, (b" a",))], usage=Usage())


class Changed(FakeOpenAI):
    """Logits of an echo are changed by a function of the logit and its token."""

    change: Any = None

    def _echoed(self, ids: Any, count: int) -> Any:
        shown = super()._echoed(ids, count)
        for one in shown:
            tops = (one.entry or {}).get("top_logprobs") or ()
            for named in {id(top): top for top in (*tops, one.entry)}.values():
                if named["logprob"] is not None and named["logprob"] > -50:
                    named["logprob"] = min(0.0, self.change(named["logprob"], named["token"]))
        return shown


@pytest.mark.parametrize("seed", partly([0, 2, 3, 4, 6, 7, 8, 9], 2))
@pytest.mark.parametrize("size", [0.0625, 0.125])
async def test_an_echo_of_16_bits_is_used(seed: int, size: float) -> None:
    """A logit is then one of every eighth, and rounded in another way where the text is read in one go."""
    server = Changed(talkative(seed, 0), beginning=True)
    server.change = lambda logprob, token: logprob + (-size, 0.0, size)[len(token + str(logprob)) % 3]
    assert (await over(server, "echo").describe()).capabilities.score


@pytest.mark.parametrize("seed", partly(range(8), 2))
@pytest.mark.parametrize("power", [0.7, 1.4])
async def test_an_echo_of_another_temperature_is_not(seed: int, power: float) -> None:
    server = Changed(talkative(seed, 0), beginning=True)
    server.change = lambda logprob, token: logprob * power
    assert not (await over(server, "echo").describe()).capabilities.score


async def test_a_beginning_that_is_not_shown_counts() -> None:
    server = FakeOpenAI(talkative(5, 0), beginning=True, shows_beginning=False)
    provider = over(server, "echo")
    scored = await provider.score(Context("", b"a ab"), usage=Usage())
    assert b"".join(token.data for token in scored) == b"a ab"
    assert [token.prob is None for token in scored] == [True, *[False] * (len(scored) - 1)]


class RightForShortTexts(FakeOpenAI):
    """Echoes texts of more than 60 tokens with a shift."""

    def _echoed(self, ids: Sequence[int], count: int) -> Any:
        self.echo = "shifted" if len(ids) > 60 else "yes"
        try:
            return super()._echoed(ids, count)
        finally:
            self.echo = "yes"


async def test_an_echo_that_is_right_for_short_texts_alone_is_found_out() -> None:
    server = RightForShortTexts(talkative(5, 0))
    provider, expected = over(server, "echo"), over(FakeOpenAI(talkative(5, 0)), "singles")
    prompt, text = "ab a b1 11 ab, " * 15, b"a b a1b ba"
    asked = [Question(at, (text[at : at + 1],)) for at in (2, 4, 8)]
    found = await provider.propose(Context(prompt, text), asked, usage=Usage())
    assert found == await expected.propose(Context(prompt, text), asked, usage=Usage())
    with pytest.raises(ResponseError, match="the echo of a long text does not agree with what the model says there"):
        await provider.score(Context(prompt, text), usage=Usage())


async def test_a_long_echo_is_held_against_the_model_once() -> None:
    server = FakeOpenAI(talkative(5, 0))
    provider = over(server, "echo")
    prompt, text = "ab a b1 11 ab, " * 15, b"a b a1b ba"
    await provider.score(Context(prompt, text), usage=Usage())
    server.requests.clear()
    await provider.score(Context(prompt, text), usage=Usage())
    assert [bool(body.get("echo")) for body in server.bodies] == [True]
