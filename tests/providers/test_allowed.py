"""The search for an allowed token: in lists of any length, and over providers, against its definition."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import ContextLengthError, Token, UnsupportedError, Usage
from cosd_providers.allowed import search
from cosd_providers.contract import AllowedTokens, Context
from cosd_providers.testing import Call, ScriptedProvider, TableModel
from fakes.adapters import Engine, LlamaCppEngine, Local, SglangEngine, VllmEngine
from support.asked import valid
from support.drawn import examples
from toys import toy_models as toys


def way_of(engine: Engine) -> dict[str, Any]:
    """A stand-in that encodes text."""
    return {name: value and name != "old" for name, value in engine.way.items()}


NOTHING = 1e-200  # what a server may show for a probability of 0
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


@pytest.mark.parametrize("local", [False, True], ids=["by the server", "local tokenizer"])
@pytest.mark.parametrize("engine", [LlamaCppEngine(), VllmEngine(), SglangEngine()], ids=repr)
@examples(40)
@given(data=st.data())
async def test_adapters_find_the_most_probable_allowed_token(engine: Engine, local: bool, data: st.DataObject) -> None:
    """Of all tokens; without a tokenizer here, servers of ids show no parts of characters, so none are among them."""
    case = engine.case(data.draw(engine.models()), way_of(engine))
    case.server.listed = 5  # by vLLM
    model, prompt = case.model, data.draw(engine.prompts())
    whole = engine.name == "llama.cpp" or local
    read = {n: b"" if n in model.end_ids else text for n, text in enumerate(model.tokens)}
    shown = {n: text for n, text in read.items() if n in model.end_ids or (text and (whole or valid([Token(text, 1)])))}
    allowed = data.draw(st.sets(st.sampled_from([*shown.values(), b"\xff"])))
    probs = model.next(model.encode(prompt))
    best = max((probs[n] for n, text in shown.items() if text in allowed), default=0)
    async with case.make(**({"tokenizer": Local(model)} if local else {})) as provider:
        assert isinstance(provider, AllowedTokens) and (await provider.describe()).capabilities.finds_allowed
        for ids in (None, ()):
            found = await provider.list_allowed(Context(prompt.decode(), b"", ids), allowed.__contains__, usage=Usage())
            able = [one.prob or 0 for one in found if (one.data or one.end) and one.data in allowed]
            assert max(able, default=0) == pytest.approx(best, rel=case.closeness, abs=NOTHING)
            assert bool(able) == bool(found)
            assert [one.prob for one in found] == sorted((one.prob or 0 for one in found), reverse=True)
            for one in found:
                assert one.prob == pytest.approx(probs[one.id or 0], rel=case.closeness, abs=NOTHING)


WORDS = [*(bytes([n]) for n in range(256)), *(b" w%d" % n for n in range(5000)), b" <b>", b"<|x|>", b"</s>"]
SPECIAL, END = len(WORDS) - 2, len(WORDS) - 1
PROBS = [2.0**-20 / (1 + (n - SPECIAL) * 2003 % len(WORDS)) for n in range(len(WORDS))]
UNLIKELY = {WORDS[n] for n in range(256, SPECIAL) if PROBS[n] < 2.0**-27}  # most words
LARGE = TableModel(WORDS, lambda _: PROBS, end_ids=(END,))


@pytest.mark.parametrize("refuses", [False, True], ids=["shows nothing", "refuses"])
@pytest.mark.parametrize("engine", [VllmEngine(), SglangEngine()], ids=repr)
async def test_a_large_vocabulary_is_read_once(engine: Engine, refuses: bool) -> None:
    """Whatever a server does with ids beyond the last one, and with more ids than it may be asked for at once."""
    case = engine.case(LARGE, way_of(engine))
    case.server.specials = {SPECIAL: "<|x|>"}
    decoded = list[int]()  # bytes of requests

    def handle(request: httpx.Request) -> httpx.Response:
        decoding = request.url.path.endswith("/detokenize")
        decoded.append(len(request.content) if decoding else 0)
        if refuses and decoding:
            ids = str(json.loads(request.content)["tokens"]).translate(str.maketrans("[],", "   ")).split()
            if max(map(int, ids)) > len(WORDS) + 1:
                return httpx.Response(400, json={"error": {"message": "out of range", "code": 400}})
        response: httpx.Response = case.server.handle(request)
        return response

    usage, context = Usage(), Context("Q", b"", ())
    async with case.make(handle) as provider:
        assert isinstance(provider, AllowedTokens)
        for allowed in (UNLIKELY.__contains__, b" <b>".__eq__, b"".__eq__, {b"<|x|>", b" w7"}.__contains__):
            found = await provider.list_allowed(context, allowed, usage=usage)
            able = [n for n, data in enumerate(WORDS) if n != SPECIAL and allowed(b"" if n == END else data)]
            [one, *_] = [one for one in found if (one.data or one.end) and allowed(one.data)]
            assert one.id == max(able, key=PROBS.__getitem__)
            assert (one.data, one.end) == (b"" if one.id == END else WORDS[one.id], one.id == END)
            assert one.prob == pytest.approx(PROBS[one.id])
        assert sum(decoded) > 30_000
        decoded.clear()
        assert await provider.list_allowed(context, b" w4999".__eq__, usage=usage)
        assert await provider.list_allowed(context, b"<|x|>".__eq__, usage=usage) == []
        assert sum(decoded) < 1000, "of tokens that are listed now"
