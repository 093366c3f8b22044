"""The cost of a line to the process that feeds the actors of a batch on Ray. Run by a Python that has Ray."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio

from benchmarks.batch import one_token, write_lines
from cosd_api.batch.job import BatchJob
from cosd_api.batch.summary import BatchTally

__all__ = ["feed"]


async def feed(lines: int, at_once: int, actors: int) -> tuple[float, float]:
    """Answer lines by one token each. Ray is initialized.

    Returns:
        Microseconds of this process's processor time for a line, Ray's threads included; and lines a second. Both
        without the first fifth of them.
    """
    on_ray: Any = import_module("cosd_api.batch.on_ray")
    looks: list[tuple[float, float]] = []

    def look(_: BatchTally) -> None:
        looks.append((time.process_time(), time.monotonic()))

    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "in.jsonl", Path(name) / "out.jsonl"
        write_lines(source, lines)
        async with one_token() as local:
            job = BatchJob(source, target, concurrency=at_once, progress=look)
            await job.run(local, on_ray.RayAnswering([one_token] * actors, at_once))
    first = lines // 5
    used, took = (end - begin for begin, end in zip(looks[first], looks[-1], strict=True))
    return 1e6 * used / (lines - first), (lines - first) / took


def main() -> None:
    """Feed LINES AT_ONCE ACTORS on a cluster of this machine alone, and print both figures."""
    lines, at_once, actors = map(int, sys.argv[1:])
    ray: Any = import_module("ray")
    ray.init(address="local", log_to_driver=False, logging_level=logging.ERROR)
    try:
        found = anyio.run(feed, lines, at_once, actors)
    finally:
        ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
