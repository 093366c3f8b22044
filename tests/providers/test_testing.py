"""The scripted provider, as users write it in their tests."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import (
    Capabilities,
    ContextLengthError,
    DraftEnd,
    Proposal,
    Provider,
    Question,
    RateLimitError,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context, IdContexts
from cosd_providers.testing import Call, Fault, ScriptedProvider, TableModel, TextModel
from support.asked import Inquiry, check_alternatives, check_proposed, check_scored, inquired
from toys import toy_models as toys

SCRIPT: dict[str, list[Any]] = {"2 + 2 =": [" 4", (".", 0.4), (" 😀", 0.7), ("", 0.8)], "2 + 2 = 5": [("?", 0.9)]}
END = Token(b"", 0.8, end=True, name="</s>")


def scripted(**options: Any) -> ScriptedProvider:
    return ScriptedProvider.from_texts(SCRIPT, **options)


async def draft(
    provider: Provider, text: bytes = b"", limit: int = 20, usage: Usage | None = None, **more: Any
) -> list[Any]:
    stream = provider.generate(Context("2 + 2 =", text), max_tokens=limit, usage=usage or Usage(), **more)
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
    first, second = await provider.propose(Context("2 + 2 =", b" 4. x"), questions, usage=usage)
    assert first == Proposal(0, (Token(b" 4", 1.0),))
    assert second is not None
    assert [token.data for token in second.tokens] == [b".", " 😀".encode()]
    assert usage.requests == 1
    everywhere = await provider.propose(Context("2 + 2 =", b" 4."), None, usage=usage)
    assert [one.tokens[0].data for one in everywhere if one] == [b" 4", b".", " 😀".encode()]


async def test_scores_and_tokens() -> None:
    provider = scripted()
    assert await provider.score(Context("2 + 2 =", b" 4.!"), usage=Usage()) == [
        Token(b" 4", 1.0),
        Token(b".", 0.4),
        Token(b"!", 0.0),
    ]
    assert [piece.data for piece in await provider.tokenize(" 4.")] == [b" 4", b"."]


async def test_calls_are_recorded() -> None:
    provider = scripted()
    await draft(provider, limit=3)
    await draft(provider, limit=3, temperature=1, seed=5, alternatives=2)
    questions = (Question(0, (b" 4",)),)
    await provider.propose(Context("2 + 2 =", b" 4"), list(questions), usage=Usage())
    await provider.propose(Context("2 + 2 =", b" 4"), list(questions), alternatives=3, usage=Usage())
    await provider.score(Context("2 + 2 =", b" 4"), usage=Usage())
    await provider.score(Context("2 + 2 =", b" 4"), alternatives=1, end=True, usage=Usage())
    assert provider.calls == [
        Call("generate", "2 + 2 =", b"", max_tokens=3),
        Call("generate", "2 + 2 =", b"", max_tokens=3, temperature=1, seed=5, alternatives=2),
        Call("propose", "2 + 2 =", b" 4", questions),
        Call("propose", "2 + 2 =", b" 4", questions, alternatives=3),
        Call("score", "2 + 2 =", b" 4"),
        Call("score", "2 + 2 =", b" 4", alternatives=1, end=True),
    ]
    assert (provider.requests, provider.open_requests) == (6, 0)


async def test_faults() -> None:
    error = RateLimitError("slow down", status=429)
    provider = scripted(faults=[Fault(error, request=1, tokens=1), Fault(error, request=3)])
    usage = Usage()
    stream: Any = provider.generate(Context("2 + 2 =", b""), max_tokens=9, usage=usage)
    assert await anext(stream) == Token(b" 4", 1.0)
    with pytest.raises(RateLimitError, match="slow down"):
        await anext(stream)
    assert len(await draft(provider)) == 5
    with pytest.raises(RateLimitError):
        await provider.propose(Context("2 + 2 =", b""), [Question(0, (b"a",))], usage=usage)
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
    stream: Any = provider.generate(Context("2 + 2 =", b""), max_tokens=9, usage=usage)
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
    stream = ScriptedProvider(model).generate(Context("a", b""), max_tokens=9, usage=Usage())
    assert [item.data async for item in stream if isinstance(item, Token)] == [b"ab", b"ab", b"ab", b""]


@given(toys.models(may_hide_end=False), toys.prompts(), st.integers(0, 8))
async def test_alternatives_are_the_models_own(model: toys.ToyModel, prompt: bytes, count: int) -> None:
    provider = ScriptedProvider(toys.Plain(model))
    items: list[list[Any]] = [
        [item async for item in provider.generate(Context(prompt.decode(), b""), max_tokens=20, usage=Usage(), **more)]
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


@given(inquired(toys.models(may_hide_end=False)), st.integers(1, 8))
async def test_proposed_alternatives_are_the_models_own(drawn: tuple[toys.ToyModel, Inquiry], count: int) -> None:
    (toy, (prompt, text, questions)), provider = drawn, ScriptedProvider(toys.Plain(drawn[0]))
    alone = await provider.propose(Context(prompt.decode(), text), questions, usage=Usage())
    found = await provider.propose(Context(prompt.decode(), text), questions, alternatives=count, usage=Usage())
    for one, other in zip(alone, found, strict=True):
        assert one is not None
        assert other is not None
        assert replace(other, tokens=tuple(replace(token, alternatives=()) for token in other.tokens)) == one
        check_proposed(toys.Plain(toy), prompt + text[: one.start], other.tokens[0], count)


@given(toys.models(may_hide_end=False), toys.prompts(), toys.prompts(), st.integers(0, 8))
async def test_scored_alternatives_are_the_models_own(
    toy: toys.ToyModel, prompt: bytes, text: bytes, count: int
) -> None:
    provider = ScriptedProvider(toys.Plain(toy))
    alone = await provider.score(Context(prompt.decode(), text), usage=Usage())
    found = await provider.score(Context(prompt.decode(), text), alternatives=count, end=True, usage=Usage())
    assert [replace(token, alternatives=()) for token in found[:-1]] == alone
    check_scored(toys.Plain(toy), prompt, found, count)


async def test_the_end_of_a_text() -> None:
    provider = scripted()
    other = Token(b" 4", 1.0)
    assert await provider.score(Context("2 + 2 =", b" 4. \xf0\x9f\x98\x80"), end=True, usage=Usage()) == [
        *(await provider.score(Context("2 + 2 =", b" 4. \xf0\x9f\x98\x80"), usage=Usage())),
        END,
    ]
    never = Token(b"", 0.0, end=True, name="</s>", alternatives=(other,))
    assert await provider.score(Context("2 + 2 =", b""), alternatives=2, end=True, usage=Usage()) == [never]
    [end] = await scripted(end_prob=False).score(Context("2 + 2 =", b""), alternatives=2, end=True, usage=Usage())
    assert end == Token(b"", None, end=True, name="</s>")
    several = TableModel([b"", b"", b"Q"], lambda ids: [0.2, 0.7, 0.1], end_ids=(0, 1))
    [end] = await ScriptedProvider(several).score(Context("Q", b""), end=True, usage=Usage())
    assert end.prob == 0.7
    [end] = await ScriptedProvider(TableModel([b"Q"], lambda ids: [1.0])).score(
        Context("Q", b""), end=True, usage=Usage()
    )
    assert end.prob is None  # such a model has no end


async def test_a_provider_lists_as_many_alternatives_as_it_can() -> None:
    provider = ScriptedProvider(TableModel([b"2 + 2 =", b"a", b"b", b"c"], lambda ids: [0.1, 0.4, 0.3, 0.2]), top_k=2)
    first, *_ = await draft(provider, limit=1, alternatives=9)
    assert [one.data for one in first.alternatives] == [b"b", b"c"]
    [first] = await provider.score(Context("2 + 2 =", b"c"), alternatives=9, usage=Usage())
    assert [one.data for one in first.alternatives] == [b"a", b"b"]
    [found] = await provider.propose(Context("2 + 2 =", b""), [Question(0, (b"a",))], alternatives=9, usage=Usage())
    assert found is not None
    assert [one.data for one in found.tokens[0].alternatives] == [b"b", b"c"]


async def test_abilities() -> None:
    size = len(TextModel(SCRIPT).tokens)
    able = Capabilities(True, True, True, True, top_k=size - 1, score_top_k=size - 1, sampling=True, finds_allowed=True)
    assert (await scripted().describe()).capabilities == able
    able = Capabilities(True, True, True, True, top_k=2, score_top_k=2, finds_allowed=True)
    assert (await scripted(top_k=2, sampling=False).describe()).capabilities == able
    assert (await scripted(probs=False).describe()).capabilities.top_k == 0


async def test_sampled_tokens_follow_the_distribution() -> None:
    """A chi-squared test with 4 degrees of freedom, which 18.5 exceeds once in a thousand times."""
    probs = [0.4, 0.0, 0.3, 0.15, 0.1, 0.05]
    model = TableModel([b"a", b"2 + 2 =", b"b", b"c", b"d", b""], lambda ids: probs, end_ids=(5,))
    provider, counts = ScriptedProvider(model), dict.fromkeys(range(6), 0)
    for seed in range(1000):
        first, *_ = await draft(provider, limit=1, temperature=1, seed=seed, alternatives=1)
        at = next(n for n, data in enumerate(model.tokens) if data == first.data)
        counts[at] += 1
        assert first.prob == probs[at]
        assert [one.data for one in first.alternatives] == [b"b" if at == 0 else b"a"]
    assert counts[1] == 0
    expected = {at: 1000 * prob for at, prob in enumerate(probs) if prob}
    assert sum((counts[at] - mean) ** 2 / mean for at, mean in expected.items()) < 18.5


@given(toys.models(), toys.prompts(), st.integers(0, 2**32))
async def test_a_seed_draws_the_same_tokens_again(toy: toys.ToyModel, prompt: bytes, seed: int) -> None:
    drafts = [
        [
            item
            async for item in ScriptedProvider(toys.Plain(toy)).generate(
                Context(prompt.decode(), b""),
                max_tokens=20,
                temperature=1,
                seed=seed,
                alternatives=count,
                usage=Usage(),
            )
        ]
        for count in (0, 0, 3)
    ]
    assert drafts[0] == drafts[1]
    bare = [replace(item, alternatives=()) if isinstance(item, Token) else item for item in drafts[2]]
    assert bare == drafts[0]


async def test_temperatures() -> None:
    with pytest.raises(ValueError, match=r"temperature must be 0 or 1, not 0\.7"):
        await draft(scripted(), temperature=0.7)
    with pytest.raises(UnsupportedError, match="does not sample"):
        await draft(scripted(sampling=False), temperature=1)
    assert await draft(scripted(sampling=False), temperature=0) == await draft(scripted())


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


HALVES = (b"", b"Q", b"a", b"\xc3", b"\xa9", b"a")
"""A vocabulary of an end, a prompt, and parts of characters; two tokens are the same byte."""


def by_ids(**options: Any) -> ScriptedProvider:
    """A model that writes a letter of two tokens, and ends."""
    after = {1: [0, 0, 0.3, 0.5, 0, 0.2], 3: [0, 0, 0, 0.1, 0.9, 0], 4: [0.8, 0, 0.2, 0, 0, 0]}
    model = TableModel(HALVES, lambda ids: after.get(ids[-1], [0, 0, 0.2, 0.3, 0, 0.5]), end_ids=(0,))
    return ScriptedProvider(model, ids=True, **options)


async def raw(provider: Provider, ids: tuple[int, ...] = (), limit: int = 9, **more: Any) -> list[Any]:
    text = b"".join(HALVES[at] for at in ids)
    return [item async for item in provider.generate(Context("Q", text, ids), max_tokens=limit, usage=Usage(), **more)]


async def test_a_context_by_ids_is_answered_in_raw_tokens() -> None:
    provider = by_ids()
    assert isinstance(provider, IdContexts)
    tokens = [Token(b"\xc3", 0.5, id=3), Token(b"\xa9", 0.9, id=4), Token(b"", 0.8, end=True, name="</s>", id=0)]
    assert await raw(provider) == [*tokens, DraftEnd("end")]
    assert await raw(provider, (3,)) == [*tokens[1:], DraftEnd("end")]
    assert await raw(provider, limit=1) == [tokens[0], DraftEnd("limit")]  # a part of a character counts as a token
    first, *_ = await raw(provider, alternatives=5)
    assert first.alternatives == (Token(b"a", 0.3, id=2), Token(b"a", 0.2, id=5))  # other ids, the same byte
    assert [call.ids for call in provider.calls] == [(), (3,), (), ()]


async def test_the_probability_of_a_part_of_a_character_may_be_hidden() -> None:
    first, second, *_ = await raw(by_ids(hides_parts=True), alternatives=2)
    assert first == Token(b"\xc3", None, id=3)
    assert second == Token(b"\xa9", 0.9, alternatives=(Token(b"\xc3", 0.1, id=3),), id=4)
    [asked] = await by_ids(hides_parts=True).next_tokens([Context("Q", b"", ())], usage=Usage())
    assert asked is not None
    assert asked.prob == 0.5


async def test_the_next_tokens_after_contexts_by_ids() -> None:
    contexts = [Context("Q", b"", ()), Context("Q", b"\xc3", (3,)), Context("Q", b"\xc3\xa9", (3, 4))]
    for places, requests in ((1, 3), (2, 2), (64, 1)):
        provider, usage = by_ids(places=places), Usage()
        found = await provider.next_tokens(contexts, usage=usage)
        assert [(one.id, one.alternatives[0].id) for one in found if one] == [(3, 2), (4, 3), (0, 2)]
        assert usage.requests == provider.requests == requests
        assert (await provider.describe()).capabilities.places == places
        assert provider.calls == [
            Call("next_tokens", "Q", b"\xc3\xa9", alternatives=1, contexts=tuple(contexts)),
        ]
    assert await by_ids(context=2).next_tokens(contexts[1:], usage=Usage()) == [None, None]
    with pytest.raises(ContextLengthError):
        await by_ids(context=0).next_tokens(contexts, usage=Usage())


async def test_encodings_and_texts_by_ids() -> None:
    provider = by_ids()
    assert [piece.id for piece in await provider.encode("aé")] == [2, 3, 4]
    assert await provider.decode([2, 3, 4, 3]) == "aé"
    with pytest.raises(UnsupportedError, match="no token 6"):
        await provider.decode([6])


async def test_without_ids_none_are_taken() -> None:
    provider, context = scripted(), Context("2 + 2 =", b"", ())
    assert not (await provider.describe()).capabilities.ids
    for one in (provider.encode("a"), provider.decode([1]), provider.next_tokens([context], usage=Usage())):
        with pytest.raises(UnsupportedError, match="takes no ids"):
            await one
    with pytest.raises(UnsupportedError, match="takes no ids"):
        await anext(aiter(provider.generate(context, max_tokens=1, usage=Usage())))
