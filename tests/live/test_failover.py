"""Answers that outlive a llama.cpp server: the draft's is killed in mid-stream, and started again."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from benchmarks.attacked import ModelServer
from cosd_api import Fusion, FusionResult, fuse
from cosd_api.apps.demo.servers import MODELS, Three

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


@pytest.fixture
async def mortal() -> AsyncIterator[ModelServer]:
    """A server of the model that adds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ModelServer("sums", MODELS / "sums.gguf", port)
    await server.start()
    yield server
    server.kill()


async def written(url: str, text: str, count: int) -> str:
    """What a model writes after a text, by its server alone."""
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
        result = await fusion.generate(PROMPT)  # the next answer needs no failover
    assert not result.seams and result.text == (await fuse(PROMPT, draft=mortal.url, assistant=three.facts)).text
