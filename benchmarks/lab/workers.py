"""Running steps concurrently, in processes that end when the process that started them ends."""

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
    """Write a line, preceded by the time, to standard error."""
    now = datetime.datetime.now(tz=datetime.UTC)
    print(f"{now:%H:%M:%S} {words}", file=sys.stderr, flush=True)


def finish_all(folder: Path, goals: Sequence[Step], jobs: int) -> None:
    """Finish steps, `jobs` at a time; then finish the steps that measure times, one by one.

    Before all these steps, their inputs are finished, one after another. After an error, no further step is started;
    the error is raised when all running steps have ended.
    """
    graph = Graph(folder, say)
    to_come = [one for one in goals if graph.state(one) != "done"]
    for goal in to_come if jobs > 1 else ():
        for step in goal.inputs.values():
            graph.finish(step)
    together = [one for one in to_come if not one.alone] if jobs > 1 else []
    # Each process is a fresh interpreter, so that it inherits no open files or connections.
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
    """End this process when its parent ends, so that a restarted step does not share its folder with it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
