"""What llama-cpp-python's server does, asked plainly: each of its ways that the adapter knows of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from cosd_providers import Question, Usage, connect
from cosd_providers.contract import Context
from cosd_providers.engines import OpenAICompatible
from naive.plain_http import CLOSE, PlainLlamaCppPython
from support.served import Served

PROMPT = "Q: What is the capital of Peru?\nA:"


def complete(url: str, **fields: Any) -> Any:
    response = httpx.post(f"{url}/v1/completions", json={"temperature": 0, **fields}, timeout=60, headers=CLOSE)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", ["sums", "facts", "reciter"])
async def test_it_is_recognised(served: Mapping[str, Served], name: str) -> None:
    async with connect(served[name].url) as provider:
        info = await provider.describe()
    assert (info.engine, info.model) == ("llama-cpp-python", name)
    assert (info.capabilities.probs, info.capabilities.end_prob) == (True, False)


async def test_an_echo_is_shifted_without_a_beginning(served: Mapping[str, Served]) -> None:
    """And then it says nothing of how probable the text's own tokens are."""
    for name, shifted in (("sums", True), ("facts", False)):
        async with OpenAICompatible(served[name].url, dialect="llama-cpp-python") as provider:
            assert (await provider.describe()).capabilities.score is not shifted
            [found] = await provider.propose(Context(PROMPT, b" The capital"), [Question(12, (b"x",))], usage=Usage())
        async with OpenAICompatible(served[name].url, dialect="llama-cpp-python", strategy="echo") as provider:
            [echoed] = await provider.propose(Context(PROMPT, b" The capital"), [Question(12, (b"x",))], usage=Usage())
            assert found and echoed
            assert echoed.tokens[0].data == found.tokens[0].data
            assert echoed.tokens[0].prob == pytest.approx(found.tokens[0].prob, abs=2e-3)
        entries = complete(served[name].url, prompt=PROMPT, max_tokens=1, logprobs=1, echo=True)["choices"][0]
        count = len(entries["logprobs"]["tokens"])
        read = complete(served[name].url, prompt=PROMPT, max_tokens=1)["usage"]["prompt_tokens"]
        assert count == read  # without a beginning the written token has no entry, with one the beginning has none


def test_lists_fail(served: Mapping[str, Served]) -> None:
    response = httpx.post(f"{served['sums'].url}/v1/completions", json={"prompt": ["a", "b"]}, headers=CLOSE)
    assert response.status_code == 500


def test_zero_is_unlimited(served: Mapping[str, Served]) -> None:
    assert complete(served["facts"].url, prompt=PROMPT, max_tokens=0)["usage"]["completion_tokens"] > 3


def test_the_end_has_no_entry(served: Mapping[str, Served], plain: Mapping[str, PlainLlamaCppPython]) -> None:
    answer = complete(served["facts"].url, prompt=PROMPT, max_tokens=60, logprobs=5)
    raws = plain["facts"].after(PROMPT, 60)
    assert raws[-1].end and answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == len(raws) - 1


def test_a_stream_hides_characters_of_several_tokens(served: Mapping[str, Served]) -> None:
    fields: Any = {"prompt": "Recite 2:", "max_tokens": 12, "logprobs": 1, "temperature": 0}
    whole = complete(served["reciter"].url, **fields)["choices"][0]["text"]
    body = {**fields, "stream": True}
    text = httpx.post(f"{served['reciter'].url}/v1/completions", json=body, timeout=60, headers=CLOSE).text
    assert whole.startswith("日本語")
    assert "日" not in text and "\\u65e5" not in text
    assert "usage" not in text
