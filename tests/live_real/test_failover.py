"""A real draft that is killed in mid-answer, and returns: SmolLM2 drafts, and SmolLM2 without a layer stands in."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from benchmarks.attacked import ModelServer
from cosd_api import Fusion
from live_real.conftest import FOLDER
from smollm2.install import MODEL

PROMPT = [{"role": "user", "content": "Write a long story about a fox and a river. Take your time."}]


@pytest.fixture
async def mortal() -> AsyncIterator[ModelServer]:
    """A server of the real model that can be killed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = ModelServer("real", Path(str(FOLDER)) / MODEL, port)
    await server.start()
    yield server
    server.kill()


async def test_the_draft_is_killed_and_returns(mortal: ModelServer, shorter: str) -> None:
    async with Fusion(draft=mortal.url, assistant=shorter, on_draft_error="assistant") as fusion:
        async with fusion.stream(PROMPT, max_tokens=240) as stream, anyio.create_task_group() as group:
            alone = 0
            count = 0
            async for token in stream:
                count += 1
                if count == 8:
                    mortal.signal(signal.SIGKILL)
                alone += token.alone
                if alone == 1 and token.alone:
                    group.start_soon(mortal.start)
        result = stream.result
        again = await fusion.generate(PROMPT, max_tokens=20)
    first, second = result.seams
    assert (first.source, second.source) == ("assistant", "draft")
    assert result.text.startswith(again.text[:20])
    assert [one.alone for one in result.tokens] == [
        first.token <= at < second.token for at in range(len(result.tokens))
    ]
    assert all(one.verified for one in result.tokens[second.token :])
    assert len(result.tokens) == 240 or result.finish_reason == "stop"
    assert result.trace.replay() == result.text and not again.seams
