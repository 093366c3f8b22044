"""The profile of the client: what counts for which library."""

from __future__ import annotations

import gc
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module

import pytest

from benchmarks.cpu import Case
from benchmarks.profiled import Samples, by_library, profile, sampling
from benchmarks.simulated import simulated


def samples(seconds: float = 1.0, collecting: float = 0.0, **frames: int) -> Samples:
    """Samples of the modules of these names."""
    files = {name: str(import_module(name).__file__) for name in frames if name != "here"}
    files["here"] = __file__
    return Samples(Counter({files[name]: count for name, count in frames.items()}), collecting, seconds)


def test_files_count_for_their_library() -> None:
    found = by_library(samples(httpx=1, cosd_api=1, cosd_providers=1, json=1, here=1))
    assert [*found] == ["httpx", "cosd_api", "cosd_providers", "json", "tests", "garbage collection", "others"]
    assert found["json"] == pytest.approx(0.2)


def test_small_shares_are_the_others_and_collecting_is_beside_all() -> None:
    found = by_library(samples(2.0, 1.0, httpx=150, json=49, cosd_api=1))
    expected = {"httpx": 0.375, "json": 0.1225, "garbage collection": 0.5, "others": 0.0025}
    assert found == pytest.approx(expected)


@pytest.fixture
def no_other_collectors() -> Iterator[None]:
    """No callbacks of others: a signal waits for the first Python code behind the collector, which is theirs."""
    others, gc.callbacks[:] = [*gc.callbacks], []
    yield
    gc.callbacks[:] = others


@pytest.mark.usefixtures("no_other_collectors")
def test_what_runs_is_noted_and_the_timer_ends_with_the_block() -> None:
    before, collectors, found = signal.getsignal(signal.SIGPROF), len(gc.callbacks), Samples()
    with sampling(found):
        for busy in (partial(sum, range(1000)), gc.collect):
            end = time.process_time() + 0.1
            while time.process_time() < end:
                busy()
    assert max(found.frames, key=lambda file: found.frames[file]) == __file__
    assert found.seconds >= 0.2 and 0 < found.collecting < found.seconds
    assert (signal.getitimer(signal.ITIMER_PROF)[0], signal.getsignal(signal.SIGPROF)) == (0, before)
    assert len(gc.callbacks) == collectors


@pytest.mark.extended
async def test_a_fresh_process_is_profiled() -> None:
    async with simulated() as server:
        table = await profile(server, Case(8, 64, 64))
    shares = table.figures["shares"]
    assert sum(shares.values()) == pytest.approx(1) and {"cosd_api", "cosd_providers"} & {*shares}
    assert [row[0] for row in table.rows] == [*shares]
