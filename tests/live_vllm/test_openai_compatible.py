"""The OpenAI-compatible adapter against vLLM's `/v1`, held against plain HTTP with ids."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_api.apps.demo.servers import Pair
from cosd_providers import ContextLengthError, DraftEnd, Question, Token, UnsupportedError, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.openai import DIALECTS, OpenAICompatible
from support.asked import draft

MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"
TEXT = " The capital of Peru is Zürich 😀 and the total is 42.\n"
MODELS = Path(__file__).parents[1] / "models"


def ask(url: str, name: str, prompt: Any, **fields: Any) -> Any:
    """A plain request; its one choice."""
    body = {"model": name, "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5, **fields}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def prompt_tokens(url: str, name: str, text: str, skip: int) -> list[dict[str, Any]]:
    """The own entry of each prompt token, by id; those of the first `skip` ids are left out."""
    choice = ask(url, name, text, prompt_logprobs=1, return_token_ids=True)
    pairs = list(zip(choice["prompt_token_ids"], choice["prompt_logprobs"], strict=True))
    return [entry[str(token_id)] for token_id, entry in pairs[skip:]]


@pytest.fixture
def url(vllm_pair: Pair, vllm_name: str) -> str:
    return vllm_pair[vllm_name]


async def test_description(url: str, vllm_name: str) -> None:
    async with OpenAICompatible(url, dialect="vllm") as provider:
        info = await provider.describe()
    assert (info.model, info.context, info.engine) == (vllm_name, 512, "vllm")
    able = info.capabilities
    assert (able.score, able.end_prob, able.sampling, able.top_k, able.score_top_k) == (True, True, True, 19, 19)


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
async def test_draft(url: str, vllm_name: str, dialect: str) -> None:
    usage = Usage()
    async with OpenAICompatible(f"{url}/v1", dialect=dialect) as provider:
        *tokens, end = await draft(provider, MIXED, limit=64, usage=usage)
        plain = ask(url, vllm_name, MIXED, max_tokens=64)
        assert b"".join(token.data for token in tokens).decode() == plain["text"]
        assert (end, tokens[-1].end, tokens[-1].name) == (DraftEnd("end"), True, plain["logprobs"]["tokens"][-1])
        expected = [math.exp(value) for value in plain["logprobs"]["token_logprobs"]]
        assert [token.prob for token in tokens] == pytest.approx(expected, abs=1e-3)
        assert (usage.requests, usage.completion_tokens) == (1, len(expected))


async def listed(url: str, name: str, api: str, prompt: str) -> dict[str, float]:
    """The 20 most probable first tokens, by a plain request."""
    if api == "completions":
        [top] = ask(url, name, prompt, logprobs=20)["logprobs"]["top_logprobs"]
        return {token: math.exp(value) for token, value in top.items()}
    body = {"model": name, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "temperature": 0}
    more = {"logprobs": True, "top_logprobs": 20}
    response = httpx.post(f"{url}/v1/chat/completions", json={**body, **more}, timeout=60)  # noqa: ASYNC210
    [entry] = response.json()["choices"][0]["logprobs"]["content"]
    return {one["token"]: math.exp(one["logprob"]) for one in entry["top_logprobs"]}


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_alternatives_and_drawn_tokens(
    url: str, vllm_name: str, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(asking: object) -> None:
        """As below: nothing is continued here."""

    monkeypatch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
    places = {prompt: await listed(url, vllm_name, api, prompt) for prompt in ("Q", "The", "a b", "1", "B", MIXED)}
    prompt, raw = min(places.items(), key=lambda place: max(place[1].values()))
    # More than the server lists are refused, and then as many are asked for as it lists.
    dialect = replace(DIALECTS["vllm"], most=50, chat_most=50)
    async with OpenAICompatible(url, dialect=dialect, api=api) as provider:
        usage = Usage()
        for count in (40, 40, 5):
            first, *_ = await draft(provider, prompt, limit=1, alternatives=count, usage=usage)
            told = {(token.name if token.end else token.data.decode()): token.prob for token in first.alternatives}
            ranked = sorted(raw, key=lambda token: -raw[token])
            assert list(told) == ranked[1 : 1 + len(told)]
            assert list(told.values()) == pytest.approx([raw[token] for token in told], abs=1e-3)
            assert len(told) > 2
        assert usage.requests == 4
        drawn = dict.fromkeys(raw, 0)
        count = 120
        for seed in range(count):
            token, *_ = await draft(provider, prompt, limit=1, temperature=1, seed=seed)
            text = token.name if token.end else token.data.decode()
            drawn[text] = drawn.get(text, 0) + 1
            if text in raw:
                assert token.prob == pytest.approx(raw[text], abs=2e-3)
        again = [await draft(provider, prompt, limit=9, temperature=1, seed=1) for _ in range(2)]
        assert again[0] == again[1]
    likely = {text: count * prob for text, prob in raw.items() if count * prob >= 5}
    found = [(drawn[text], mean) for text, mean in likely.items()]
    assert len(likely) > 1 or api == "chat"  # all of its answers may begin with one word
    found.append((count - sum(number for number, _ in found), max(count - sum(likely.values()), 1.0)))
    free = len(found) - 1
    assert sum((number - mean) ** 2 / mean for number, mean in found) < free + 5 * math.sqrt(2 * free) + 3


async def test_messages(url: str, vllm_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(asking: object) -> None:
        """One of these templates trims an answer that is continued: see below. None is continued here."""

    monkeypatch.setattr("cosd_providers.engines.openai.discovery.check_continuation", nothing)
    async with OpenAICompatible(url, dialect="vllm", api="chat") as provider:
        *tokens, end = await draft(provider, MIXED, limit=64)
    messages = [{"role": "user", "content": MIXED}]
    body = {"model": vllm_name, "messages": messages, "max_tokens": 64, "temperature": 0, "logprobs": True}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)  # noqa: ASYNC210
    [choice] = response.json()["choices"]
    assert b"".join(token.data for token in tokens).decode() == choice["message"]["content"]
    expected = [math.exp(entry["logprob"]) for entry in choice["logprobs"]["content"]]
    assert [token.prob for token in tokens] == pytest.approx(expected, abs=1e-3)
    assert end == DraftEnd("end")


async def test_messages_whose_template_trims_them(vllm_pair: Pair) -> None:
    async with OpenAICompatible(vllm_pair.facts, dialect="vllm", api="chat") as provider:  # this model's template does
        with pytest.raises(UnsupportedError, match="takes white space off the end of an answer"):
            await draft(provider, MIXED, b" The capital")


@pytest.mark.parametrize("word", [False, True])
@pytest.mark.parametrize("strategy", ["echo", "list", "singles"])
async def test_proposals(url: str, vllm_name: str, word: bool, strategy: Any) -> None:
    text = TEXT.encode()
    questions = [Question(at, (text[at : at + 4],), word=word) for at in range(0, 29, 3)]
    source = MODELS / vllm_name if strategy == "echo" else None
    usage = Usage()
    async with OpenAICompatible(url, dialect="vllm", strategy=strategy, tokenizer=source) as provider:
        await provider.describe()
        proposals = await provider.propose(Context(MIXED, text), questions, usage=usage)
    for question, proposal in zip(questions, proposals, strict=True):
        plain = ask(url, vllm_name, MIXED + text[: question.start].decode(), max_tokens=12)
        assert proposal is not None
        data = b"".join(token.data for token in proposal.tokens)
        assert plain["text"].encode().startswith(data)
        if plain["logprobs"]["tokens"][0]:  # else a character in parts
            expected = math.exp(plain["logprobs"]["token_logprobs"][0])
            assert proposal.tokens[0].prob == pytest.approx(expected, rel=1e-2, abs=1e-3)
    if not word:
        assert usage.requests <= {"echo": 2, "list": 2, "singles": 20}[strategy]


async def test_scores(url: str, vllm_name: str) -> None:
    async with OpenAICompatible(url, dialect="openai") as provider:
        scored = await provider.score(Context(MIXED, TEXT.encode()), usage=Usage())
    assert b"".join(token.data for token in scored) == TEXT.encode()
    skip = len(ask(url, vllm_name, MIXED, return_token_ids=True)["prompt_token_ids"])
    parts: list[float] = []
    expected: list[float] = []
    for entry in prompt_tokens(url, vllm_name, MIXED + TEXT, skip):
        parts.append(math.exp(entry["logprob"]))
        if entry["decoded_token"]:
            expected.append(min(parts))
            parts = []
    assert [token.prob for token in scored] == pytest.approx(expected, rel=1e-2, abs=1e-12)


async def test_every_boundary(url: str) -> None:
    async with OpenAICompatible(url, dialect="vllm") as provider:
        scored = await provider.score(Context(MIXED, TEXT.encode()), usage=Usage())
        proposals = await provider.propose(Context(MIXED, TEXT.encode()), None, usage=Usage())
    starts = [0]
    for token in scored:
        starts.append(starts[-1] + len(token.data))
    assert [one.start for one in proposals if one] == starts


async def test_context(url: str) -> None:
    async with OpenAICompatible(url, dialect="vllm") as provider:
        with pytest.raises(ContextLengthError, match="maximum context length is 512 tokens"):
            await draft(provider, "x" * 2000, limit=600)
        assert await draft(provider, "x", b"x" * 2000) == [DraftEnd("context")]
        *tokens, end = await draft(provider, "a" * 300, limit=600)
        assert end.reason in ("context", "end")
        assert all(isinstance(token, Token) for token in tokens)


async def test_what_it_cannot_do(url: str) -> None:
    async with OpenAICompatible(url, dialect=replace(DIALECTS["vllm"], continues=None), api="chat") as provider:
        with pytest.raises(UnsupportedError, match="does not continue a partial answer"):
            await provider.score(Context(MIXED, b" The"), usage=Usage())
