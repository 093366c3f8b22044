"""Answers that outlive a llama.cpp server: the draft's is killed in mid-stream, and started again."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest

from benchmarks.attacked import KEY, ModelServer, free_port, gateway
from benchmarks.weights import in_full
from cosd_api import Fusion, FusionResult, fuse
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import MODELS, Three

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


@pytest.fixture
async def mortal() -> AsyncIterator[ModelServer]:
    """A server of the model that adds."""
    server = ModelServer("sums", MODELS / "sums.gguf", free_port())
    await server.start()
    yield server
    server.kill()


async def written(url: str, text: str, count: int) -> str:
    """The continuation of a text by a model's server alone."""
    async with httpx.AsyncClient(timeout=60) as client:
        body = {
            "prompt": text,
            "n_predict": count,
            "temperature": 0,
            "cache_prompt": True,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        answer = await client.post(f"{url}/completion", json=body)
    found: str = answer.json()["content"]
    return found


async def killed(fusion: Fusion, server: ModelServer, after: int, *, again: bool) -> FusionResult:
    """An answer whose draft is killed after some tokens."""
    async with fusion.stream(PROMPT) as stream:
        count = 0
        async for _ in stream:
            count += 1
            if count == after:
                server.signal(signal.SIGKILL)
                if again:
                    await anyio.sleep(0.2)
                    await server.start()
        return stream.result


@pytest.mark.parametrize("after", [1, 4, 9])
async def test_an_assistant_writes_on_where_the_draft_died(mortal: ModelServer, three: Three, after: int) -> None:
    alone = await fuse(PROMPT, draft=mortal.url, assistant=three.facts)
    async with Fusion(draft=mortal.url, assistant=three.facts, on_draft_error="assistant") as fusion:
        result = await killed(fusion, mortal, after, again=False)
    if not result.seams:  # the draft had written all of it
        assert result.text == alone.text
        return
    [seam] = result.seams
    before = "".join(one.text for one in result.tokens[: seam.token])
    assert alone.text.startswith(before)
    wanted = await written(three.facts, PROMPT + before, len(result.tokens) - seam.token)
    assert result.text == (before + wanted)[: len(result.text)] and len(result.text) >= len(before)
    assert result.failures == {"draft": "ConnectError"} or set(result.failures) == {"draft"}
    assert not any(one.verified for one in result.tokens[seam.token :])
    assert result.trace.replay() == result.text


async def test_the_draft_takes_over_again_after_its_restart(mortal: ModelServer, three: Three) -> None:
    settings: dict[str, Any] = {"assistant": three.facts, "on_draft_error": "assistant"}
    async with Fusion(draft=mortal.url, **settings) as fusion:
        await killed(fusion, mortal, 3, again=True)
        result = await fusion.generate(PROMPT)
        if result.seams:  # the first answer ended before it looked for the draft, which this one does at once
            assert [seam.source for seam in result.seams][:1] == ["assistant"]
            result = await fusion.generate(PROMPT)  # this one needs no failover
    assert not result.seams and result.text == (await fuse(PROMPT, draft=mortal.url, assistant=three.facts)).text


@pytest.mark.extended
@pytest.mark.timeout(300)
async def test_sixty_four_streams_outlive_three_deaths_of_each_server(tmp_path: Path) -> None:
    """Both servers have one model, so that every text is known, whoever writes it: nothing is repeated or lost."""
    model = tmp_path / "sums.gguf"
    model.write_bytes(in_full((MODELS / "sums.gguf").read_bytes()))  # in full precision, slots do not change a text
    servers = [ModelServer("sums", model, free_port()) for _ in range(2)]
    settings = {
        "fusions": {
            "cosd": {
                "draft": {"url": servers[0].url},
                "assistants": [{"url": servers[1].url}],
                "on_draft_error": "assistant",
                "on_assistant_error": "draft",
            }
        }
    }
    prompts = [question.prompt for question in sample("sum", 16, seed=3)]
    over, texts, told = anyio.Event(), dict[str, str](), Counter[str]()

    async def ask(client: openai.AsyncOpenAI, number: int) -> None:
        for at in count(number):
            prompt, text, reasons = prompts[at % len(prompts)], "", list[str]()
            async for one in await client.completions.create(model="cosd", prompt=prompt, stream=True, max_tokens=40):
                text += one.choices[0].text
                reasons += [one.choices[0].finish_reason] if one.choices[0].finish_reason else []
            assert text == texts[prompt] and reasons == ["stop"], (text, texts[prompt], reasons)
            told[str(number)] += 1
            if over.is_set():
                return

    try:
        for one in servers:
            await one.start()
        async with Fusion(draft=servers[0].url, assistant=servers[1].url) as fusion:
            texts = {prompt: (await fusion.generate(prompt, max_tokens=40)).text for prompt in prompts}
        async with gateway(tmp_path, settings, servers[0], servers[1]) as attacked:
            key: dict[str, Any] = {"base_url": f"{attacked.url}/v1", "api_key": KEY, "max_retries": 0, "timeout": 60}
            async with openai.AsyncOpenAI(**key) as client, anyio.create_task_group() as group:
                for number in range(64):
                    group.start_soon(ask, client, number)
                for server in servers * 3:
                    await anyio.sleep(1.5)
                    server.signal(signal.SIGKILL)
                    await anyio.sleep(1.5)
                    await server.start()
                    before = dict(told)  # no answer meets the deaths of both servers, however slow the machine is
                    while not all(told[str(number)] > before.get(str(number), 0) for number in range(64)):  # noqa: ASYNC110
                        await anyio.sleep(0.1)
                over.set()
    finally:
        for one in servers:
            one.kill()
    assert len(told) == 64 and min(told.values()) > 6
