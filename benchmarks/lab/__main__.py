"""`python -m benchmarks.lab`: run the laboratory, or go on where it was stopped; see `--help`."""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.lab.answers import comparison_in
from benchmarks.lab.graph import Graph
from benchmarks.lab.page import write_pages
from benchmarks.lab.plan import Asked, asked
from benchmarks.lab.protocol import FOLDER, FULL, QUICK, Size, protocol_hash
from benchmarks.lab.runs import Run, RunsFile, read_runs, write_runs

RESULTS = FOLDER / "results"
WORK = FOLDER / "work"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the laboratory. What is finished is not made again: the same command goes on after any interruption."""
    parser = argparse.ArgumentParser("python -m benchmarks.lab", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, 100 questions a task, the kept weights")
    parser.add_argument("--list", action="store_true", help="show the steps: what is done, and what is to come")
    parser.add_argument("--page", action="store_true", help="write docs/laboratory.md from what was kept, and no more")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the steps' results")
    given = parser.parse_args(arguments)
    size = QUICK if given.quick else FULL
    path = RESULTS / f"{size.name}.jsonl.xz"
    if given.list:
        print(listing(asked(size), Graph(given.work)))
        return
    if not given.page:
        write_runs(path, run(size, Graph(given.work, _say)))
    for written in write_pages(read_runs(path)):
        print(written)


def _say(words: str) -> None:
    now = datetime.datetime.now(tz=datetime.UTC)
    print(f"{now:%H:%M:%S} {words}", file=sys.stderr, flush=True)


def run(size: Size, graph: Graph, plan: Callable[[Size], Sequence[Asked]] = asked) -> RunsFile:
    """Finish every step of a size; returns all comparisons."""
    several = plan(size)
    runs = [Run(one.cell, one.task, one.seed, comparison_in(graph.finish(one.step))) for one in several]
    steps = {step.key: step for one in several for step, _ in graph.listing([one.step, *one.step.inputs.values()])}
    about = {
        "size": size.name,
        "hash": protocol_hash(),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "seconds": round(sum(graph.measured(step) or 0.0 for step in steps.values())),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    return RunsFile(runs, about)


def listing(several: Sequence[Asked], graph: Graph) -> str:
    """The steps with their states, and the time that is still to be spent, estimated."""
    lines: list[str] = []
    left = 0.0
    for step, state in graph.listing([one.step for one in several]):
        seconds = graph.measured(step) if state == "done" else step.seconds
        left += 0.0 if state == "done" else step.seconds
        about = "" if state == "done" else "about "
        lines.append(f"{state:8}{about + f'{seconds:.0f} s':>14}  {step.name}")
    return "\n".join([*lines, f"to come: about {left / 3600:.1f} hours"])


if __name__ == "__main__":
    main()
