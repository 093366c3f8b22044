"""The OpenAI-compatible adapter against vLLM's `/v1`, held against plain HTTP with ids."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from asked import draft
from cosd_api.demo.servers import Pair
from cosd_providers import ContextLengthError, DraftEnd, Question, Token, UnsupportedError, Usage
from cosd_providers.engines.openai import DIALECTS, OpenAICompatible

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
    assert (info.capabilities.score, info.capabilities.end_prob) == (True, True)


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
        proposals = await provider.propose(MIXED, text, questions, usage=usage)
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
        scored = await provider.score(MIXED, TEXT.encode(), usage=Usage())
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
        scored = await provider.score(MIXED, TEXT.encode(), usage=Usage())
        proposals = await provider.propose(MIXED, TEXT.encode(), None, usage=Usage())
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
            await provider.score(MIXED, b" The", usage=Usage())
