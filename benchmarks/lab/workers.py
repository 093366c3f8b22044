"""Steps side by side, in processes that end with the one that started them."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks.lab.graph import Graph, Step

__all__ = ["finish_all", "say"]

_WATCH_SECONDS = 0.5


def say(words: str) -> None:
    """Write a line with the time to standard error."""
    now = datetime.datetime.now(tz=datetime.UTC)
    print(f"{now:%H:%M:%S} {words}", file=sys.stderr, flush=True)


def finish_all(folder: Path, goals: Sequence[Step], jobs: int) -> None:
    """Finish steps, `jobs` of them at a time; then, one by one, those that measure times.

    What they need is finished before, one step after the other. The first error ends it, as soon as those steps are
    finished that have begun.
    """
    graph = Graph(folder, say)
    to_come = [one for one in goals if graph.state(one) != "done"]
    for goal in to_come if jobs > 1 else ():
        for step in goal.inputs.values():
            graph.finish(step)
    together = [one for one in to_come if not one.alone] if jobs > 1 else []
    # A fresh interpreter for each process: what this one has open is not inherited.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin, (os.getpid(),)) as pool:
        waiting = [pool.submit(_finished, folder, one) for one in sorted(together, key=lambda one: -one.seconds)]
        try:
            for finished in as_completed(waiting):
                finished.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for one in to_come:
        graph.finish(one)


def _finished(folder: Path, step: Step) -> None:
    Graph(folder, say).finish(step)


def _begin(parent: int) -> None:
    """Watch in a thread whether the parent has gone: a step that is begun again must find its folder its own."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
