"""Echoes that are not what they should be: one that is shifted is put right where that is proved, and else not used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import toys
from asked import close, inquiries
from cosd_providers import Question, UnsupportedError, Usage
from cosd_providers.contract import Piece
from cosd_providers.openai import Dialect, OpenAICompatible
from fake_openai import FakeOpenAI

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
    """A model that goes on after every text, as a rule."""
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


@pytest.mark.parametrize("echo", ["yes", "shifted", "unshown"])
@given(st.integers(0, 10**6), st.sampled_from((0, 8)), inquiries(), st.sampled_from(("legacy", "chat")), st.booleans())
async def test_a_shifted_echo_gives_what_single_prompts_give(
    echo: Any, seed: int, fluency: int, inquiry: tuple[bytes, bytes, list[Question]], shape: Any, shows: bool
) -> None:
    prompt, text, questions = inquiry
    model = talkative(seed, fluency)
    simple = bytes(set(b"ab1, "))
    assume(prompt and not {*prompt, *text} - {*simple})
    way: dict[str, Any] = {"shape": shape, "beginning": echo == "yes", "shows_beginning": shows}
    server = FakeOpenAI(model, echo=echo, **way)
    provider = over(server, "echo")
    try:
        ours = await provider.propose(prompt.decode(), text, questions, usage=Usage())
    except UnsupportedError:
        assume(False)
    theirs = await over(FakeOpenAI(model, **way), "singles").propose(prompt.decode(), text, questions, usage=Usage())
    assert (await provider.describe()).capabilities.score is (echo == "yes")
    for one, other in zip(ours, theirs, strict=True):
        assert (one and one.start) == (other and other.start)
        close(one.tokens if one else (), other.tokens if other else ())


@pytest.mark.parametrize("echo", ["shifted", "unshown"])
async def test_a_shifted_echo_answers_in_one_request(echo: Any) -> None:
    server = FakeOpenAI(talkative(5, 0), echo=echo)
    provider = over(server, "echo")
    assert not (await provider.describe()).capabilities.score
    server.requests.clear()
    whole = "a ab,1 b ab a"
    asked = [Question(at, (whole[at : at + 1].encode(),)) for at in (3, 6, 8, 10, 11, 13)]
    found = await provider.propose("", whole.encode(), asked, usage=Usage())
    assert [bool(body.get("echo")) for body in server.bodies] == [True]
    expected = await over(FakeOpenAI(talkative(5, 0)), "singles").propose("", whole.encode(), asked, usage=Usage())
    assert found == expected
    with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text, or not the right"):
        await provider.score("a", b" ab", usage=Usage())


async def test_what_a_shifted_echo_cannot_tell_is_asked() -> None:
    server = FakeOpenAI(talkative(5, 0), echo="unshown")
    provider = over(server, "echo")
    await provider.describe()
    server.requests.clear()
    # Nothing tells what follows the first token: its entry is null.
    await provider.propose(
        "1", b",b", [Question(0, (b",",)), Question(1, (b"b",)), Question(2, (b"a",))], usage=Usage()
    )
    assert [(body["prompt"], bool(body.get("echo"))) for body in server.bodies] == [("1,b", True), ("1", False)]


@pytest.mark.parametrize("beginning", [True, False])
@pytest.mark.parametrize("off", [2, 3])
async def test_an_echo_that_is_shifted_further_is_not_used(off: int, beginning: bool) -> None:
    class Further(FakeOpenAI):
        def _echoed(self, ids: Any, count: int) -> Any:
            shown = super()._echoed(ids, count)
            return [type(one)(one.text, two.entry) for one, two in zip(shown, shown[off:] + shown[:off], strict=True)]

    server = Further(talkative(5, 0), beginning=beginning)
    with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text"):
        await over(server, "echo").propose("a", b" ab", [Question(0, (b" a",))], usage=Usage())


async def test_a_beginning_that_is_not_shown_counts() -> None:
    server = FakeOpenAI(talkative(5, 0), beginning=True, shows_beginning=False)
    provider = over(server, "echo")
    scored = await provider.score("", b"a ab", usage=Usage())
    assert b"".join(token.data for token in scored) == b"a ab"
    assert [token.prob is None for token in scored] == [True, *[False] * (len(scored) - 1)]
