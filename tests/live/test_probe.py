"""The probe on live llama.cpp servers: each line of a report against what plain HTTP requests say."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.servers import Pair
from cosd_providers import ProbeReport, connect, probe
from cosd_providers.probe import definition_of
from naive.plain_http import ask, get

pytestmark = pytest.mark.live

OPENING = "The capital of France is Paris, and the"
MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def post(url: str, body: Any) -> httpx.Response:
    return httpx.post(url, json=body, timeout=60, headers={"Connection": "close"})


@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_each_line_is_what_plain_requests_say(pair: Pair, name: str) -> None:
    url = pair[name]
    report = await probe(url)
    found = {line.name: line.value for line in report.lines}
    props = get(f"{url}/props")
    assert (report.endpoint, report.engine, report.model) == (url, "llama.cpp", name)
    assert report.version == props["build_info"]
    assert found["context"] == props["default_generation_settings"]["n_ctx"]

    # Logprobs, their number, and that they are those of the softmax whatever the temperature.
    tops = [
        [entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]]
        for answer in (ask(url, OPENING, n_probs=100), ask(url, OPENING, n_probs=100, temperature=0.5))
    ]
    assert found["logprobs"] is True
    assert found["depth"] == len(tops[0])
    assert tops[0] == pytest.approx(tops[1], abs=0.05)
    assert found["probabilities"] == "raw"

    # Lists, ids, the whole of a prompt, the cache.
    one, other = ask(url, [OPENING, MIXED])
    assert found["lists"] is (
        [one["tokens"], other["tokens"]] == [ask(url, text)["tokens"] for text in (OPENING, MIXED)]
    )
    ids = post(f"{url}/tokenize", {"content": OPENING, "add_special": True}).json()["tokens"]
    assert found["ids"] is (ask(url, ids)["tokens"] == ask(url, OPENING)["tokens"])
    assert found["whole"] is (ask(url, OPENING)["tokens_evaluated"] == len(ids))
    assert found["cache"] is (ask(url, MIXED)["timings"]["cache_n"] > 0)
    assert (found["restart"], report["restart"].seen) == (0, "no tokens in its cache are read again after a change")

    # The server scores nothing in one request, although it takes the fields on another route.
    echo = post(f"{url}/v1/completions", {"prompt": OPENING, "echo": True, "logprobs": 1, "max_tokens": 1})
    assert echo.status_code != 200 or not echo.json()["choices"][0]["text"].startswith(OPENING)
    assert found["scoring"] == "place by place"

    # What it is made to write, and the end of that.
    text = " é 日本 😀"
    said = ask(url, "Q: What is the capital of France?\nA:", n_predict=48, grammar=f'root ::= "{text}"')
    entries = said["completion_probabilities"]
    shown = b"".join(bytes(entry["bytes"]) for entry in entries if entry["id"] != said["tokens"][-1])
    assert found["bytes"] is (shown == text.encode())
    assert f"{len(entries) - 1} tokens shown of {len(said['tokens'])}" in report["bytes"].seen
    assert said["stop_type"] == "eos"
    assert found["end"] is (entries[-1]["logprob"] < 0)

    # The template, and a reply that is started.
    rendered = post(f"{url}/apply-template", {"messages": [{"role": "user", "content": "X"}]}).json()["prompt"]
    assert found["template"] == rendered.partition("X")[2]
    started = [{"role": "user", "content": "X"}, {"role": "assistant", "content": "one two"}]
    assert post(f"{url}/apply-template", {"messages": started}).json()["prompt"] == f"{rendered}one two"
    assert found["prefill"] == "the last message alone"

    # What follows.
    assert (found["draft"], found["score"], found["propose"], found["tokenizer"]) == ("ids", True, True, "endpoint")
    assert report.can_draft and report.can_assist
    assert report.strategies == ("list", "singles")
    assert report.advice == ()


async def test_it_costs_little_and_says_how_much(pair: Pair) -> None:
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request.url.path)

    async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=60) as client:
        report = await probe(pair.facts, http_client=client)
    sent = sum(path.endswith(("/completion", "/completions")) for path in asked)
    assert report.spent.requests == sent - 3 < 80  # discovery, which finds the ends and tries the cache, is not counted
    assert 0 < report.spent.completion_tokens < 300
    assert 0 < report.spent.prompt_tokens < 5000


@pytest.mark.parametrize("options", [{"engine": "openai"}, {"engine": "openai", "dialect": "llama.cpp"}])
async def test_its_compatible_route(pair: Pair, options: dict[str, Any]) -> None:
    report = await probe(pair.facts, **options)
    found = {line.name: line.value for line in report.lines}
    expected = {"logprobs": True, "probabilities": "raw", "lists": True, "ids": True, "bytes": True, "end": True}
    assert {name: found[name] for name in expected} == expected
    assert found["scoring"] is False
    assert "echo with logprobs is" in report["scoring"].seen
    assert found["draft"] == "text"
    assert report.can_draft and report.can_assist


async def test_a_report_spares_the_discovery(pair: Pair) -> None:
    reports = [ProbeReport.model_validate_json((await probe(url)).model_dump_json()) for url in (pair.sums, pair.facts)]
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request.url.path)

    texts: list[str] = []
    without: list[dict[str, Any]] = [{}, {}]
    for given in (without, [{"report": report} for report in reports]):
        asked.clear()
        async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=60) as client:
            draft, assistant = (
                connect(url, http_client=client, **more)
                for url, more in zip((pair.sums, pair.facts), given, strict=True)
            )
            async with Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier()) as fusion:
                texts.append((await fusion.generate(MIXED)).text)
    assert texts[0] == texts[1]
    assert (asked[0], asked.count("/v1/models")) == ("/v1/models", 2)
    assert not {"/props", "/slots", "/apply-template"} & {*asked}
    assert definition_of(reports).unit == "word"
