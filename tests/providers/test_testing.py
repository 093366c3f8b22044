"""The scripted provider, as users write it in their tests."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toys
from asked import check_alternatives
from cosd_providers import (
    ContextLengthError,
    DraftEnd,
    Proposal,
    Provider,
    Question,
    RateLimitError,
    Token,
    Usage,
)
from cosd_providers.testing import Call, Fault, ScriptedProvider, TableModel, TextModel

SCRIPT: dict[str, list[Any]] = {"2 + 2 =": [" 4", (".", 0.4), (" 😀", 0.7), ("", 0.8)], "2 + 2 = 5": [("?", 0.9)]}
END = Token(b"", 0.8, end=True, name="</s>")


def scripted(**options: Any) -> ScriptedProvider:
    return ScriptedProvider.from_texts(SCRIPT, **options)


async def draft(
    provider: Provider, text: bytes = b"", limit: int = 20, usage: Usage | None = None, **more: Any
) -> list[Any]:
    stream = provider.generate("2 + 2 =", text, max_tokens=limit, usage=usage or Usage(), **more)
    return [item async for item in stream]


async def test_a_script_is_written_as_it_is() -> None:
    provider = scripted()
    assert isinstance(provider, Provider)
    whole = [Token(b" 4", 1.0), Token(b".", 0.4), Token(" 😀".encode(), 0.7), END, DraftEnd("end")]
    assert await draft(provider) == whole
    assert await draft(provider, b" 4") == whole[1:]
    assert await draft(provider, b" 5") == [Token(b"?", 0.9), Token(b"", 1.0, end=True, name="</s>"), DraftEnd("end")]
    assert (await draft(provider, b" six"))[-1] == DraftEnd("end")


async def test_inside_a_token_the_rest_of_it_follows() -> None:
    assert (await draft(scripted(), b" 4. "))[0] == Token("😀".encode(), 0.7)


async def test_limits_and_continuations() -> None:
    *tokens, end = await draft(scripted(), limit=2)
    assert (len(tokens), end.reason) == (2, "limit")
    assert (await draft(scripted(), b" 4.", continuation=end.continuation))[0].data == " 😀".encode()
    assert (await draft(scripted(token_ids=False), limit=2))[-1] == DraftEnd("limit", None)
    assert (await draft(scripted(end_prob=False)))[-2] == Token(b"", None, end=True, name="</s>")


async def test_context() -> None:
    size = len(TextModel(SCRIPT).encode(b"2 + 2 ="))
    assert (await draft(scripted(context=size + 1)))[-1] == DraftEnd("context")
    with pytest.raises(ContextLengthError, match=f"the text has {size} tokens, the model's context {size - 1}"):
        await draft(scripted(context=size - 1))


async def test_questions() -> None:
    provider = scripted()
    usage = Usage()
    questions = [Question(0, (b" 4",)), Question(2, (b".", b" x"), word=True)]
    first, second = await provider.propose("2 + 2 =", b" 4. x", questions, usage=usage)
    assert first == Proposal(0, (Token(b" 4", 1.0),))
    assert second is not None
    assert [token.data for token in second.tokens] == [b".", " 😀".encode()]
    assert usage.requests == 1
    everywhere = await provider.propose("2 + 2 =", b" 4.", None, usage=usage)
    assert [one.tokens[0].data for one in everywhere if one] == [b" 4", b".", " 😀".encode()]


async def test_scores_and_tokens() -> None:
    provider = scripted()
    assert await provider.score("2 + 2 =", b" 4.!", usage=Usage()) == [
        Token(b" 4", 1.0),
        Token(b".", 0.4),
        Token(b"!", 0.0),
    ]
    assert [piece.data for piece in await provider.tokenize(" 4.")] == [b" 4", b"."]


async def test_calls_are_recorded() -> None:
    provider = scripted()
    await draft(provider, limit=3)
    questions = (Question(0, (b" 4",)),)
    await provider.propose("2 + 2 =", b" 4", list(questions), usage=Usage())
    await provider.score("2 + 2 =", b" 4", usage=Usage())
    assert provider.calls == [
        Call("generate", "2 + 2 =", b"", max_tokens=3),
        Call("propose", "2 + 2 =", b" 4", questions),
        Call("score", "2 + 2 =", b" 4"),
    ]
    assert (provider.requests, provider.open_requests) == (3, 0)


async def test_faults() -> None:
    error = RateLimitError("slow down", status=429)
    provider = scripted(faults=[Fault(error, request=1, tokens=1), Fault(error, request=3)])
    usage = Usage()
    stream: Any = provider.generate("2 + 2 =", b"", max_tokens=9, usage=usage)
    assert await anext(stream) == Token(b" 4", 1.0)
    with pytest.raises(RateLimitError, match="slow down"):
        await anext(stream)
    assert len(await draft(provider)) == 5
    with pytest.raises(RateLimitError):
        await provider.propose("2 + 2 =", b"", [Question(0, (b"a",))], usage=usage)
    assert provider.open_requests == 0
    assert (usage.requests, usage.completion_tokens) == (2, 1)


async def test_hanging_and_giving_up() -> None:
    provider = scripted(faults=[Fault(None, request=1, tokens=1)])
    with anyio.move_on_after(0.05) as scope:
        await draft(provider)
    assert scope.cancelled_caught
    assert provider.open_requests == 0


async def test_closing_a_draft_closes_its_request() -> None:
    provider = scripted()
    usage = Usage()
    stream: Any = provider.generate("2 + 2 =", b"", max_tokens=9, usage=usage)
    await anext(stream)
    assert provider.open_requests == 1
    await stream.aclose()
    assert provider.open_requests == 0
    assert usage.busy_seconds > 0


async def test_delays() -> None:
    usage = Usage()
    await draft(scripted(request_delay=0.02, token_delay=0.01), usage=usage, limit=3)
    assert usage.first_token_seconds is not None
    assert 0.03 <= usage.first_token_seconds < usage.busy_seconds
    assert usage.busy_seconds >= 0.05


async def test_a_model_of_ones_own() -> None:
    def next_probs(ids: Any) -> list[float]:
        return [0.6, 0.2, 0.2] if len(ids) > 3 else [0.2, 0.2, 0.6]

    model = TableModel([b"", b"a", b"ab"], next_probs, end_ids={0})
    assert model.encode(b"aaba") == [1, 2, 1]
    with pytest.raises(ValueError, match="no token of the model fits b'b'"):
        model.encode(b"aabb")
    stream = ScriptedProvider(model).generate("a", b"", max_tokens=9, usage=Usage())
    assert [item.data async for item in stream if isinstance(item, Token)] == [b"ab", b"ab", b"ab", b""]


@given(toys.models(may_hide_end=False), toys.prompts(), st.integers(0, 8))
async def test_alternatives_are_the_models_own(model: toys.ToyModel, prompt: bytes, count: int) -> None:
    provider = ScriptedProvider(toys.Plain(model))
    items: list[list[Any]] = [
        [item async for item in provider.generate(prompt.decode(), b"", max_tokens=20, usage=Usage(), **more)]
        for more in ({}, {"alternatives": count})
    ]
    check_alternatives(toys.Plain(model), prompt, items[1][:-1], count)
    bare = [replace(item, alternatives=()) if isinstance(item, Token) else item for item in items[1]]
    assert bare == items[0]
    assert [call.alternatives for call in provider.calls] == [0, count]


async def test_alternatives() -> None:
    """The most probable first, without parts of characters, equal texts and impossible tokens."""
    probs = {b" a": 0.4, b"\xc3": 0.2, b" b": 0.1, b"": 0.15, b" c": 0.15, b" d": 0.0, b"Q": 0.0}
    model = TableModel([*probs, b" a", b"2 + 2 ="], lambda ids: [*probs.values(), 0.3, 0], end_ids=(3,))
    first, *_ = await draft(ScriptedProvider(model), limit=1, alternatives=5)
    end = Token(b"", 0.15, end=True, name="</s>")
    assert first == Token(b" a", 0.4, alternatives=(end, Token(b" c", 0.15), Token(b" b", 0.1)))
    first, *_ = await draft(ScriptedProvider(model), limit=1, alternatives=1)
    assert first.alternatives == (end,)
    first, *_ = await draft(ScriptedProvider(model, end_prob=False), limit=1, alternatives=1)
    assert first.alternatives == (Token(b" c", 0.15),)
    first, *_ = await draft(ScriptedProvider(model, probs=False), limit=1, alternatives=1)
    assert first == Token(b" a", None)


async def test_a_part_of_a_character_has_no_alternatives() -> None:
    tokens = [b"", b"2 + 2 =", b"\xc3", b" b"]
    model = TableModel(tokens, lambda ids: [0.1, 0, 0.6, 0.3] if len(ids) == 1 else [0.6, 0, 0.1, 0.3], end_ids=(0,))
    part, end, _ = await draft(ScriptedProvider(model), alternatives=2)
    assert part == Token(b"\xc3", 0.6)
    assert (end.end, end.alternatives) == (True, (Token(b" b", 0.3),))


async def test_pickling_keeps_the_script() -> None:
    provider = scripted(name="draft")
    await draft(provider)
    assert await draft(pickle.loads(pickle.dumps(provider))) == await draft(provider)
    assert (await provider.describe()).model == "draft"
