"""The client's processor time by library: a breakdown of a fused token's microseconds.

A timer interrupts the process after each millisecond of its processor time. The innermost Python frame then shows which
code was running; C functions count towards the frame that called them. Unlike a tracing profiler, this does not slow
down functions that are called often. Garbage collection is timed by the collector's own callbacks, because an interrupt
during a collection is delivered only in these callbacks.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from benchmarks.cpu import Case, child, fusions
from benchmarks.report import Cell, Table
from benchmarks.simulated import Simulated

__all__ = ["Samples", "by_library", "profile", "sampling"]

_EVERY = 0.001  # seconds of processor time between two samples
_STDLIB = Path(sysconfig.get_path("stdlib"))
_OURS = Path(__file__).parent.parent
_FEWEST = 0.01  # libraries with a smaller share are combined as `others`


@dataclass(slots=True)
class Samples:
    """Samples of the running code, and the time spent in the garbage collector.

    Attributes:
        frames: number of samples by source file.
        collecting: seconds of garbage collection.
        seconds: seconds of processor time in total.
    """

    frames: Counter[str] = field(default_factory=Counter[str])
    collecting: float = 0.0
    seconds: float = 0.0


@contextmanager
def sampling(samples: Samples) -> Iterator[None]:
    """Sample the code that runs on the main thread during the block."""
    since = 0.0

    def note(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is not collecting.__code__:
            samples.frames[frame.f_code.co_filename] += 1

    def collecting(phase: str, _: Mapping[str, int]) -> None:
        nonlocal since
        if phase == "start":
            since = time.process_time()
        else:
            samples.collecting += time.process_time() - since

    before = signal.signal(signal.SIGPROF, note)
    gc.callbacks.append(collecting)
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        samples.seconds = time.process_time() - start
        gc.callbacks.remove(collecting)
        signal.signal(signal.SIGPROF, before)


def by_library(samples: Samples) -> dict[str, float]:
    """Shares of the time by library, the largest first; small shares are combined as `others`."""
    found: Counter[str] = Counter()
    for file, count in samples.frames.items():
        found[_library(file)] += count
    collecting = samples.collecting / samples.seconds
    one = (1 - collecting) / found.total()
    found.pop("others", None)
    shares = {name: count * one for name, count in found.most_common() if count * one >= _FEWEST}
    shares["garbage collection"] = collecting
    return {**shares, "others": 1 - sum(shares.values())}


@cache
def _library(file: str) -> str:
    """The library that a file belongs to; for a file of this repository, its top-level folder."""
    path = Path(file)
    if "site-packages" in path.parts:
        return path.parts[path.parts.index("site-packages") + 1].removesuffix(".py")
    for base in (_OURS, _STDLIB):
        if path.is_relative_to(base):
            inner = path.relative_to(base)
            return inner.parts[1] if inner.parts[0] == "providers" else inner.parts[0].removesuffix(".py")
    return "others"


async def profile(server: Simulated, case: Case) -> Table:
    """Profile one run in a fresh process, and return the table."""
    found = await child(server, "profiled", case, module="benchmarks.profiled")
    cpu = found["measured"]["cpu"]
    rows: list[list[Cell]] = [[name, f"{100 * share:.0f} %", share * cpu] for name, share in found["shares"].items()]
    about = (
        f"One run over {found['measured']['carrier']}, with {case.fusions} fusions at once, {case.context} tokens of "
        f"context and answers of {case.tokens} tokens. The running code is sampled once per millisecond of processor "
        "time. Time in a C function is counted for the library that calls the function."
    )
    return Table("Client CPU by library", ["", "share", "us per fused token"], rows, [about], found)


# In the fresh process.


async def _profiled(url: str, case: Case) -> dict[str, Any]:
    samples = Samples()
    measured = await fusions(url, case, beside=sampling(samples))
    return {"measured": measured, "shares": by_library(samples)}


if __name__ == "__main__":
    assert sys.argv[1] == "profiled"
    print(json.dumps(anyio.run(_profiled, sys.argv[2], Case(*map(int, sys.argv[3:])))))
