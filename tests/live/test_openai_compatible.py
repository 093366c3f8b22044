"""The OpenAI-compatible adapter against llama.cpp's `/v1`, held against plain HTTP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import anyio
import httpx
import pytest

from cosd_providers import ContextLengthError, DraftEnd, Question, UnsupportedError, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.openai import OpenAICompatible
from fakes.breaking import Repeating
from naive.plain_http import CLOSE, ask, get
from support.asked import draft
from support.drawn import partly
from toys import recitals

pytestmark = pytest.mark.live

MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def templated(url: str, prompt: str, started: str = "") -> str:
    """A message and the start of an answer, as the server's chat template renders them."""
    body = {"messages": [{"role": "user", "content": prompt}]}
    return str(httpx.post(f"{url}/apply-template", json=body, headers=CLOSE).json()["prompt"]) + started


@pytest.fixture(params=["sums", "facts"])
def url(request: pytest.FixtureRequest) -> str:
    """Each of the two real servers."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.mark.parametrize("dialect", ["llama.cpp", "openai"])
async def test_description(url: str, dialect: str) -> None:
    async with OpenAICompatible(url, dialect=dialect) as provider:
        info = await provider.describe()
    [model] = get(f"{url}/v1/models")["data"]
    assert (info.model, info.context) == (model["id"], model["meta"]["n_ctx"])
    assert not info.capabilities.score  # it takes `echo` and ignores it
    assert info.capabilities.end_prob is (dialect == "llama.cpp")


@pytest.mark.parametrize("dialect", ["llama.cpp", "openai"])
async def test_draft(url: str, dialect: str) -> None:
    usage = Usage()
    async with OpenAICompatible(f"{url}/v1", dialect=dialect) as provider:
        *tokens, end = await draft(provider, MIXED, limit=64, usage=usage)
        plain = ask(url, MIXED, n_predict=64)
        assert b"".join(token.data for token in tokens).decode() == plain["content"]
        assert end == DraftEnd("end")
        expected = [math.exp(entry["logprob"]) for entry in plain["completion_probabilities"]]
        assert [token.prob for token in tokens] == pytest.approx(expected, abs=1e-3)
        # The end of sequence shows neither a string nor bytes, and is no part of a character: nothing is asked twice.
        assert usage.requests == 1
        assert usage.prompt_tokens == plain["tokens_evaluated"]
        assert usage.completion_tokens == plain["tokens_predicted"]
        *first, end = await draft(provider, MIXED, limit=5)
        assert ([token.data for token in first], end) == ([token.data for token in tokens[:5]], DraftEnd("limit"))


@pytest.mark.parametrize("way", [{"api": "completions", "dialect": "openai"}, {"api": "chat", "dialect": "llama.cpp"}])
async def test_a_draft_that_is_left_is_billed(url: str, way: dict[str, Any]) -> None:
    """The server reports what it has read only at the end of a stream, which never comes."""
    prompts = [MIXED, "Q: Add 3 and 4.\nA:", "int main(void) { return 17; }", "Überraschung! Привет, 東京 🙂"]
    async with OpenAICompatible(url, **way) as provider:
        for prompt in prompts:
            read = ask(url, templated(url, prompt) if way["api"] == "chat" else prompt, n_predict=1)["tokens_evaluated"]
            for known in (False, True):
                usage = Usage()
                async with aclosing(provider.generate(Context(prompt, b""), max_tokens=40, usage=usage)) as tokens:
                    await anext(tokens)
                assert usage.prompt_tokens == read if known else read <= usage.prompt_tokens <= 3 * read
                assert usage.estimated_tokens == (0 if known else usage.prompt_tokens)
                await draft(provider, prompt, limit=1)  # a request that is read to its end


async def test_messages(url: str) -> None:
    async with OpenAICompatible(url, dialect="llama.cpp", api="chat") as provider:
        for started in ("", " The capital"):
            *tokens, end = await draft(provider, MIXED, started.encode(), limit=64)
            plain = ask(url, templated(url, MIXED, started), n_predict=64)
            assert b"".join(token.data for token in tokens).decode() == plain["content"]
            assert end == DraftEnd("end")
            assert tokens[-1].prob is None  # a stream of messages hides it
            expected = [math.exp(entry["logprob"]) for entry in plain["completion_probabilities"][:-1]]
            assert [token.prob for token in tokens[:-1]] == pytest.approx(expected, abs=1e-3)
            [proposal] = await provider.propose(
                Context(MIXED, started.encode()), [Question(len(started), (b"x",))], usage=Usage()
            )
            assert proposal is not None
            assert proposal.tokens[0].data == tokens[0].data


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_alternatives_as_many_as_are_asked_for(url: str, api: Any) -> None:
    """They end where the server's own list has a token without a text of its own."""
    async with OpenAICompatible(url, dialect="llama.cpp", api=api) as provider:
        assert (await provider.describe()).capabilities.top_k == 99
        seen = 0
        for started in ("", " The", " The capital of Peru is", " The capital of Peru is Lima"):
            text = started.encode()
            first, *_ = await draft(provider, MIXED, text, limit=1, alternatives=60)
            [found] = await provider.propose(
                Context(MIXED, text), [Question(len(text), (b"x",))], alternatives=60, usage=Usage()
            )
            whole = templated(url, MIXED, started) if api == "chat" else MIXED + started
            [step] = ask(url, whole, n_probs=61)["completion_probabilities"]
            shown = [bytes(one["bytes"]) for one in step["top_logprobs"]]
            expected = [math.exp(one["logprob"]) for one in step["top_logprobs"]]
            usable = [bool(data) and data.decode(errors="ignore").encode() == data for data in shown]
            assert found is not None
            for token in (first, *found.tokens):
                texts = [token.data, *(one.data for one in token.alternatives)]
                probs = [token.prob, *(one.prob for one in token.alternatives)]
                assert all(usable[: len(texts)])
                assert probs == pytest.approx(expected[: len(probs)], abs=1e-3)
                for text_at, prob in zip(texts, probs, strict=True):  # in this order, but for those as probable
                    assert prob == pytest.approx(dict(zip(shown, expected, strict=True)).get(text_at, 0), abs=1e-3)
                seen += len(token.alternatives)
        assert seen > 40


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_drawn_tokens(url: str, api: Any) -> None:
    """A seed draws the same ones again, each with its own raw probability; they follow the distribution."""
    places = {}
    for started in (" B", " The s", " x", " 1", " In", " a b", " qu"):
        whole = templated(url, MIXED, started) if api == "chat" else MIXED + started
        [step] = ask(url, whole, n_probs=10**6)["completion_probabilities"]
        listed = reversed(step["top_logprobs"])  # of special tokens, which have no bytes, the most probable one stays
        places[started] = {bytes(one["bytes"]): math.exp(one["logprob"]) for one in listed}
    started, raw = min(places.items(), key=lambda place: max(place[1].values()))
    drawn: dict[bytes, int] = {}
    count = 120
    async with OpenAICompatible(url, dialect="llama.cpp", api=api) as provider:
        for seed in range(count):
            token, *_ = await draft(provider, MIXED, started.encode(), limit=1, temperature=1, seed=seed)
            drawn[token.data] = drawn.get(token.data, 0) + 1
            if token.prob is None:  # an end that a stream hides, or a character in parts
                continue
            if token.data in raw:
                assert token.prob == pytest.approx(raw[token.data], abs=1e-3)
                continue
            # A part of a character, and what came behind it: as sure as the less sure one.
            part = max((data for data in raw if data and token.data.startswith(data)), key=len)
            assert part.decode(errors="ignore").encode() != part
            assert token.prob < raw[part] + 1e-3
        for seed in (1, 2):
            again = [await draft(provider, MIXED, limit=9, temperature=1, seed=seed) for _ in range(2)]
            assert [one.data for one in again[0][:-1]] == [one.data for one in again[1][:-1]]
    likely = {data: count * prob for data, prob in raw.items() if count * prob >= 5}
    found = [(drawn.get(data, 0), mean) for data, mean in likely.items()]
    rest = count - sum(likely.values())
    assert len(likely) > 2
    found.append((count - sum(number for number, _ in found), max(rest, 1.0)))
    free = len(found) - 1
    assert sum((number - mean) ** 2 / mean for number, mean in found) < free + 5 * math.sqrt(2 * free) + 3


@pytest.mark.extended
@pytest.mark.parametrize("word", [False, True])
@pytest.mark.parametrize("strategy", ["list", "singles"])
async def test_proposals(url: str, word: bool, strategy: Any) -> None:
    text = " The capital of Peru is Zürich 😀 and the total is 42.\n".encode()
    questions = [Question(at, (text[at : at + 4],), word=word) for at in range(0, 29, 3)]
    async with OpenAICompatible(url, dialect="llama.cpp", strategy=strategy) as provider:
        proposals = await provider.propose(Context(MIXED, text), questions, usage=Usage())
    for question, proposal in zip(questions, proposals, strict=True):
        plain = ask(url, MIXED + text[: question.start].decode(), n_predict=12)
        assert proposal is not None
        assert plain["content"].encode().startswith(b"".join(token.data for token in proposal.tokens))
        [first, *_] = plain["completion_probabilities"]
        assert proposal.tokens[0].data == bytes(first["bytes"])
        if proposal.tokens[0].prob is not None:  # else the server hides a part of it
            assert proposal.tokens[0].prob == pytest.approx(math.exp(first["logprob"]), rel=1e-2, abs=1e-3)


async def test_tokens_that_the_server_hides(trio: Mapping[str, str]) -> None:
    """Parts of a character: the server shows what they add up to, and no probability of it."""
    url, found = trio["reciter"], 0
    async with OpenAICompatible(url, dialect="llama.cpp") as provider:
        for prompt, text in [*recitals.CERTAIN.items()][:4]:
            for at, character in enumerate(text):
                if character.isascii():
                    continue
                start = prompt + text[:at]
                plain = ask(url, start, n_predict=4)
                first = plain["completion_probabilities"][0]
                if plain["tokens"][0] == first["id"]:
                    continue
                found += 1
                [proposal] = await provider.propose(Context(start, b""), [Question(0, (b"x",))], usage=Usage())
                assert proposal is not None
                assert (proposal.tokens[0].data, proposal.tokens[0].prob) == (bytes(first["bytes"]), None)
                [token, end] = await draft(provider, start, limit=1)
                assert (token.data, token.prob, end) == (bytes(first["bytes"]), None, DraftEnd("limit"))
    assert found > 5


@pytest.mark.parametrize("prompt", partly([*recitals.CERTAIN]))
@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_a_limit_within_a_character(trio: Mapping[str, str], api: Any, prompt: str) -> None:
    async with OpenAICompatible(trio["reciter"], dialect="llama.cpp", api=api) as provider:
        *whole, _ = await draft(provider, prompt, limit=30)
        assert not b"".join(token.data for token in whole).isascii()
        for limit in range(1, len(whole)):
            *tokens, end = await draft(provider, prompt, limit=limit)
            assert [token.data for token in tokens] == [token.data for token in whole[:limit]]
            assert end == DraftEnd("limit")
        for size in range(1, 6):
            question = Question(0, tuple(token.data for token in whole[:size]), word=True)
            [found] = await provider.propose(Context(prompt, b""), [question], usage=Usage())
            assert found is not None
            assert [token.data for token in found.tokens] == [token.data for token in whole[: len(found.tokens)]]
            assert len(found.tokens) >= size


@pytest.mark.parametrize("dialect", ["llama.cpp", "openai"])
async def test_a_proxy_that_repeats_events(url: str, dialect: str) -> None:
    def forward(request: httpx.Request) -> httpx.Response:
        with httpx.Client() as client:
            kept = {name: value for name, value in request.headers.items() if name in ("content-type", "accept")}
            answer = client.request(
                request.method, request.url, content=request.content, headers={**kept, **CLOSE}, timeout=60
            )
        return httpx.Response(
            answer.status_code, content=answer.content, headers={"content-type": answer.headers["content-type"]}
        )

    async with OpenAICompatible(url, dialect=dialect) as provider:
        expected = await draft(provider, MIXED, limit=64)
    for at, size in ((1, 1), (3, 1), (6, 4)):
        proxy, usage = Repeating(forward, at, size), Usage()
        async with OpenAICompatible(url, dialect=dialect, http_client=proxy.client()) as provider:
            found = await draft(provider, MIXED, limit=64, usage=usage)
        assert [one.data for one in found[:-1]] == [one.data for one in expected[:-1]]
        assert found[-1] == expected[-1]
        assert usage.requests == 2
        [warning] = usage.warnings
        assert warning.startswith(f"{url}: a part of a stream came twice")


async def test_context(url: str) -> None:
    async with OpenAICompatible(url, dialect="llama.cpp") as provider:
        with pytest.raises(ContextLengthError, match=r"exceeds the available context size \(512 tokens\)"):
            await draft(provider, "x" * 2000)
        assert await draft(provider, "x", b"x" * 2000) == [DraftEnd("context")]
        prompt = MIXED * 12
        for _ in range(9):
            prompt += " a"
            *_, end = await draft(provider, prompt, limit=400)
            assert end.reason in ("context", "end")


async def test_what_it_cannot_do(url: str) -> None:
    async with OpenAICompatible(url, dialect="llama.cpp") as provider:
        with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text"):
            await provider.score(Context(MIXED, b" The"), usage=Usage())
        with pytest.raises(UnsupportedError, match="does not encode text"):
            await provider.tokenize("a")


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_cancelling_frees_the_server(url: str, how: str) -> None:
    async with OpenAICompatible(url, dialect="llama.cpp") as provider:
        usage = Usage()
        endless: Any = provider.generate(Context("a" * 9, b""), max_tokens=400, usage=usage)
        if how == "close":
            await anext(endless)
            await endless.aclose()
        else:
            with anyio.CancelScope() as scope:
                async for _ in endless:
                    scope.cancel()
        with anyio.fail_after(20):
            while any(slot["is_processing"] for slot in get(f"{url}/slots")):  # noqa: ASYNC110
                await anyio.sleep(0.002)
        assert usage.busy_seconds > 0
        assert 0 < usage.completion_tokens < 400
