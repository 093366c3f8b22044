"""The probe on real vLLM servers: each line of a report against what plain HTTP requests say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cosd_api.apps.demo.servers import Pair
from cosd_providers import ProbeReport, connect, probe
from naive.plain_http import PlainVllm
from support.probed import printed, probed, shape

OPENING = "The capital of France is Paris, and the"
OTHER = "One, two, three, four, five, six, seven,"


async def test_each_line_is_what_plain_requests_say(vllm_pair: Pair, vllm_name: str) -> None:
    plain = PlainVllm(vllm_pair[vllm_name])
    report = await probed(plain)
    found = {line.name: line.value for line in report.lines}
    assert (report.engine, report.version) == ("vllm", plain.get("/version")["version"])

    def answered(**fields: Any) -> Any:
        return plain.complete(OPENING, max_tokens=1, **fields)["logprobs"]["top_logprobs"][0]

    most = answered(logprobs=20)
    assert found["depth"] == len(most)
    warm = answered(logprobs=20, temperature=0.5)
    assert {string: warm[string] for string in most if string in warm} == pytest.approx(
        {string: most[string] for string in most if string in warm}, abs=0.05
    )
    alone = [plain.complete(text, max_tokens=1)["text"] for text in (OPENING, OTHER)]
    body = {"model": plain.name, "prompt": [OPENING, OTHER], "max_tokens": 1, "temperature": 0}
    listed = sorted(plain.post("/v1/completions", body)["choices"], key=lambda choice: choice["index"])
    assert found["lists"] is ([choice["text"] for choice in listed] == alone)
    assert found["ids"] is (plain.complete(plain.ids(OPENING), max_tokens=1)["text"] == alone[0])

    # The distribution that scores the text's last token is the one that is generated before it.
    ids = plain.ids(OPENING)
    scored = plain.complete(ids, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"][-1]
    best = max(entry["logprob"] for entry in scored.values())
    asked = plain.complete(ids[:-1], max_tokens=1, logprobs=1)["logprobs"]["token_logprobs"][0]
    assert math.exp(best) == pytest.approx(math.exp(asked), abs=2e-3)
    assert found["scoring"] == "prompt_logprobs"

    assert found["cache"] is None, "these servers were not started to tell it"
    assert found["end"] is True
    assert found["bytes"] is True
    assert found["prefill"] == "continue_final_message"
    assert {*report.strategies} == {"echo", "list", "singles"}
    [words] = [words for words in report.advice if "--enable-prompt-tokens-details" in words]
    assert "prefix cache" in words


async def test_its_compatible_route(vllm_pair: Pair, vllm_name: str) -> None:
    report = await probed(PlainVllm(vllm_pair[vllm_name]), engine="openai", dialect="vllm")
    assert report["scoring"].value == "echo"
    assert report["lists"].value is True
    assert report["draft"].value == "text"


async def test_a_report_can_be_given_back(vllm_pair: Pair, vllm_name: str) -> None:
    report = await probed(PlainVllm(vllm_pair[vllm_name]))
    async with connect(
        vllm_pair[vllm_name], report=ProbeReport.model_validate_json(report.model_dump_json())
    ) as provider:
        info = await provider.describe()
    async with connect(vllm_pair[vllm_name]) as provider:
        assert info == await provider.describe()


async def test_the_readme_says_what_it_prints(vllm_pair: Pair) -> None:
    assert shape(str(await probe(vllm_pair.facts))) == shape(printed("vllm"))
