"""The section on the client's cost: its rows, in small sizes."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from benchmarks import client
from benchmarks.cpu import Bare, Case, Measured
from benchmarks.simulated import Speeds, simulated

TRAFFIC = Measured(300.0, 1.5, 0.1, 0.2, 8.0, 1.6, 700.0, "httpx")


def test_bare_traffic_is_of_the_least_costs() -> None:
    least = Bare.least([Bare(100, 10, 300), Bare(200, 8, 400)])
    assert least == Bare(100, 8, 300)
    assert least.of(TRAFFIC) == pytest.approx(10 + 12 + 60)


async def test_carriers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def child(server: Any, what: str, case: Case, *, http: str | None = None, module: str = "") -> dict[str, Any]:
        del server, case
        asked.append((what, http, module))
        if what == "bare":
            return {"stream": 100, "piece": 10, "request": 100}
        name = http or "aiohttp"
        return {**{field: getattr(TRAFFIC, field) for field in Measured.__slots__}, "carrier": name}

    monkeypatch.setattr(client, "child", child)
    table = await client.carriers(Case(2, 8, 4), 2, "no load")
    assert asked[:5] == asked[5:] and asked[:3] == [("fusions", "", ""), ("command", "", ""), ("fusions", "httpx", "")]
    assert [row[1:3] for row in table.rows] == [[300, 200], [300, None], [300, 350], [45, None], [45, None]]


def test_burners_end_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[Any]] = []
    original = subprocess.Popen

    def start(*args: Any, **options: Any) -> subprocess.Popen[Any]:
        started.append(original(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with client.burning(1) as count:
        assert (count, started[0].poll()) == (1, None)
    assert started[0].poll() is not None


async def test_the_same_traffic_with_nothing_above_it() -> None:
    async with simulated(Speeds(0, 0, 0)) as server:
        bare = Bare(**await client.bare(server.url, Case(1, 8, 4)))
        counts = [await server.counts(role, "bare") for role in ("draft", "assistant")]
    assert bare.stream + bare.piece > 0 and bare.request > 0
    assert [one.completion_tokens for one in counts] == [16 + 6 * 51, 26]
    assert all(one.requests == one.connections and not one.cancelled for one in counts)


@pytest.mark.extended
async def test_a_fresh_process_measures() -> None:
    table = await client.long_answers((Case(2, 8, 6, 2),))
    [measured] = table.figures.values()
    assert table.rows[0][0] == 6 and measured["cpu"] > 0
    assert measured["written"] >= 1 and measured["billed"] > measured["written"]


@pytest.mark.extended
async def test_a_fresh_process_watches_its_event_loop() -> None:
    table = await client.loops((Case(2, 8, 6),), "no load")
    [[fusions, median, high, most, each, together, mine, theirs]] = table.rows
    assert fusions == 2
    assert 0 <= float(median or 0) <= float(high or 0) <= float(most or -1)
    assert 2 * float(each or 0) == pytest.approx(float(together or 0)) and float(mine or 0) > 0 < float(theirs or 0)
