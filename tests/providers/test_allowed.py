"""The search for an allowed token: in lists of any length, over the scripted provider, against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import ContextLengthError, Token, UnsupportedError, Usage
from cosd_providers.allowed import search
from cosd_providers.contract import AllowedTokens, Context
from cosd_providers.testing import Call, ScriptedProvider
from toys import toy_models as toys

MANY = [Token(b"%d" % at, 1 / (at + 1), id=at) for at in range(60_000)]


@pytest.mark.parametrize(
    ("data", "most", "asked"),
    [
        (b"3", 60_000, [500]),
        (b"600", 60_000, [500, 5_000]),
        (b"59999", 60_000, [500, 5_000, 50_000, 60_000]),
        (b"nine", 60_000, [500, 5_000, 50_000, 60_000]),
        (b"nine", 70_000, [500, 5_000, 50_000, 70_000]),
        (b"3", 20, [20]),
        (b"30", 20, [20]),
    ],
)
async def test_longer_and_longer_lists(data: bytes, most: int, asked: list[int]) -> None:
    counts = list[int]()

    async def ask(count: int) -> Token:
        counts.append(count)
        first, *others = MANY[:count]
        return Token(first.data, first.prob, id=first.id, alternatives=tuple(others))

    found = await search(ask, data.__eq__, most)
    assert counts == asked
    assert found == (MANY[: asked[-1]] if data.isdigit() and int(data) < most else [])


@given(toys.models(may_hide_end=False), toys.prompts(), st.data())
async def test_the_most_probable_allowed_token_is_listed(
    model: toys.ToyModel, prompt: bytes, data: st.DataObject
) -> None:
    """The list is the start of the whole distribution, by ids and by text; the end has no bytes."""
    plain = toys.Plain(model)
    provider, usage = ScriptedProvider(plain, ids=True), Usage()
    allowed = data.draw(st.sets(st.sampled_from([*plain.tokens, b"\xff"])))
    probs = plain.next(plain.encode(prompt))
    order = sorted((at for at, prob in enumerate(probs) if prob), key=lambda at: -probs[at])
    read = {at: b"" if at in plain.end_ids else plain.tokens[at] for at in order}
    able = [at for at in order if (read[at] or at in plain.end_ids) and read[at] in allowed]
    for ids in (None, ()):
        found = await provider.list_allowed(Context(prompt.decode(), b"", ids), allowed.__contains__, usage=usage)
        assert [(token.data, token.prob, token.end) for token in found] == [
            (read[token.id or 0], probs[token.id or 0], token.id in plain.end_ids) for token in found
        ]
        assert [token.prob for token in found] == [probs[at] for at in order][: len(found)]
        assert bool(found) == bool(able)
        assert not able or probs[able[0]] in {token.prob for token in found if token.data in allowed}
    assert usage.requests == provider.requests >= 2


async def test_what_the_scripted_provider_notes_and_refuses() -> None:
    provider = ScriptedProvider.from_texts({"Q": [(" a", 0.6)]}, ids=True, context=2)
    assert isinstance(provider, AllowedTokens) and (await provider.describe()).capabilities.finds_allowed
    context = Context("Q", b" a", (*provider.model.encode(b" a"),))
    assert await provider.list_allowed(context, lambda _: True, usage=Usage()) == []  # the context is full
    assert provider.calls == [Call("list_allowed", "Q", b" a", contexts=(context,), ids=context.ids)]
    with pytest.raises(ContextLengthError):
        await provider.list_allowed(Context("QQQ"), lambda _: True, usage=Usage())
    provider.finds_allowed = False
    with pytest.raises(UnsupportedError, match="finds_allowed=True"):
        await provider.list_allowed(Context("Q"), lambda _: True, usage=Usage())
    assert not (await provider.describe()).capabilities.finds_allowed
