"""Two hundred streams at a time over servers that fail: each ends in the right text or an error, nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import anyio
import pytest

from cosd_api import Fusion
from cosd_providers import ConnectError, ProviderError, ResponseError, ServerError
from cosd_providers.testing import Fault, ScriptedProvider
from support.visits import Reply, Visit, opened, visit
from toys.lima import ASSISTANT, DRAFT, FUSED

pytestmark = pytest.mark.extended

STREAMS = 200
ERRORS: list[ProviderError | None] = [
    ConnectError("refused"),
    ServerError("it broke", status=500),
    ResponseError("cut off"),
    None,  # hangs
]


def faulty(scripts: Any, chance: random.Random, name: str) -> ScriptedProvider:
    """A model that fails at one request in six, somewhere."""
    faults = [
        Fault(chance.choice(ERRORS), request=number, tokens=chance.randrange(6))
        for number in range(1, 4 * STREAMS)
        if chance.random() < 1 / 6
    ]
    return ScriptedProvider.from_texts(scripts, faults=faults, name=name, token_delay=0.001)


def check(reply: Reply, *, stream: bool, left: bool) -> str:
    """The end of one request; what was sent is always the beginning of the right text."""
    if stream and reply.status == 200:
        assert FUSED.startswith("".join(reply.texts()))
        if not reply.complete:
            assert left
            return "left"
        if reply.events[-1] == "[DONE]":
            assert "".join(reply.texts()) == FUSED
            return "right"
        assert "error" in reply.events[-1]
        assert all(one["choices"][0]["finish_reason"] is None for one in reply.events[:-1])
        return "error"
    if not reply.complete:
        assert left
        return "left"
    if reply.status == 200:
        assert reply.json["choices"][0]["text"] == FUSED
        return "right"
    assert reply.error["code"] in {"upstream_unreachable", "upstream_failed", "upstream_invalid", "timeout"}
    return "error"


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_stream_ends_in_the_right_text_or_an_error(seed: int) -> None:
    chance = random.Random(seed)
    models = [faulty(scripts, chance, name) for scripts, name in ((DRAFT, "a"), (ASSISTANT, "b"))]
    ends: Counter[str] = Counter()

    async def ask(at: int) -> None:
        stream, leaves = at % 4 > 0, at % 10 == 0
        asked = Visit(app, "/v1/completions", {"model": "fused", "prompt": "Q:", "stream": stream})
        if leaves:
            group.start_soon(leave, asked, chance.random() * 0.02)
        ends[check(await asked.send(), stream=stream, left=leaves)] += 1

    async def leave(asked: Visit, seconds: float) -> None:
        await anyio.sleep(seconds)
        asked.gone.set()

    async with opened(Fusion(draft=models[0], assistant=models[1]), timeout=6.0, concurrency=STREAMS) as app:
        async with anyio.create_task_group() as group:
            for at in range(STREAMS):
                group.start_soon(ask, at)
        page = (await visit(app, "/metrics")).body.decode().splitlines()
    assert ends.total() == STREAMS
    assert ends["right"] > 20 and ends["error"] > 20
    assert [one.open_requests for one in models] == [0, 0]
    assert 'cosd_in_flight{model="fused"} 0.0' in page
    assert sum(float(line.split()[-1]) for line in page if line.startswith("cosd_requests_total")) == STREAMS
