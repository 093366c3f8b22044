"""The command `python -m benchmarks.lab`: run the laboratory, or resume it; see `--help`."""

from __future__ import annotations

import argparse
import datetime
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.lab.answers import answers, comparison_in
from benchmarks.lab.endless import ENDLESS, endless_asked
from benchmarks.lab.graph import Graph
from benchmarks.lab.likelihoods import likelihoods, likelihoods_in
from benchmarks.lab.merging import merged
from benchmarks.lab.page import write_pages
from benchmarks.lab.plan import BACK, Asked, asked, scored
from benchmarks.lab.protocol import CELLS, FOLDER, FULL, QUICK, Size, items_seed, protocol_hash
from benchmarks.lab.runs import Run, RunsFile, facts_asked, read_runs, slots_said, write_runs
from benchmarks.lab.studies import studies_of
from benchmarks.lab.workers import finish_all
from cosd_api.comparison.result import Comparison

_ABOUT = """Run the laboratory. Finished steps are not repeated: the same command resumes after any interruption.
A whole run is kept in the repository, with its page. The results and the page of a partial run (--items, --so-far,
CELL) go into the folder of the steps. With --keep a partial run is kept, too, together with the kept results of other
cells under the same protocol."""

RESULTS = FOLDER / "results"
PAGES, SHORT = FOLDER / "pages", FOLDER.parents[1] / "docs" / "laboratory.md"
WORK = FOLDER / "work"
JOBS = 3
"""The default number of concurrent steps on two cores; there are more steps than cores because steps often wait."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the laboratory with the arguments of the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.lab", description=_ABOUT)
    parser.add_argument(
        "cells",
        nargs="*",
        metavar="CELL",
        help="run only these cells, which need not belong to the size; finished results of others are shown, too",
    )
    parser.add_argument(
        "--quick", action="store_true", help="use one seed, 100 questions per task and the kept weights"
    )
    parser.add_argument("--every-way", action="store_true", help="compare every way of the full size")
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        help="use only models of this training seed (any seed if cells are named); repeat for several",
    )
    parser.add_argument("--items", type=int, help="number of questions per task, for a shorter run")
    parser.add_argument("--list", action="store_true", help="list the finished and the remaining steps")
    parser.add_argument("--so-far", action="store_true", help="show the finished results, and run nothing")
    parser.add_argument("--keep", action="store_true", help="keep the finished results, even if the size is incomplete")
    parser.add_argument("--page", action="store_true", help="only write the page from the kept results")
    parser.add_argument("--jobs", type=int, default=JOBS, help="number of concurrent steps, each with two servers")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the steps' results")
    given = parser.parse_args(arguments)
    size = QUICK if given.quick else FULL
    planned = size.items
    known = (*(cell.name for cell in CELLS), *(study.name for study in studies_of(size)), ENDLESS)
    if unknown := {*given.cells} - {*known}:
        parser.error(f"there is no cell {', '.join(sorted(unknown))} in this size, but {', '.join(known)}")
    further = [cell.name for cell in CELLS if cell.name in given.cells and cell.name not in size.cells]
    size = replace(size, items=given.items or planned, cells=(*size.cells, *further))
    if given.cells and given.seed and not {*given.seed} <= {*size.seeds}:
        size = replace(size, seeds=tuple(dict.fromkeys(given.seed)))
    plain = several = _steps(size, given.cells)
    if given.every_way:  # for the cells only; the studies have their own ways
        several = [one for one in _steps(replace(size, name=FULL.name), given.cells) if _cell(one) in size.cells]
    chosen = [
        one
        for one in several
        if (not given.cells or _cell(one) in given.cells) and (not given.seed or one.seed in given.seed)
    ]
    path, graph = RESULTS / f"{size.name}.jsonl.xz", Graph(given.work)
    pages = PAGES
    if given.list:
        print(listing(chosen, graph))
        return
    if given.page and not path.exists():
        parser.error(f"no run of the size {size.name} is kept in {path}")
    if not given.page:
        if not given.so_far:
            finish_all(given.work, [one.step for one in chosen], given.jobs)
        file = finished(size, several, graph, every_way=given.every_way)
        if not file.runs:
            parser.error(f"nothing is finished in {given.work}")
        if (file.about["to_come"] and not given.keep) or size.items != planned:
            pages = given.work / f"{size.name}-{size.items}"
            path = pages / path.name
        elif path.exists():
            file = merged(read_runs(path), file, plain)
        write_runs(path, file)
    others = [read_runs(one) for one in sorted(RESULTS.glob("*.jsonl.xz")) if one.name != path.name]
    for written in write_pages(read_runs(path), others, pages, SHORT if pages == PAGES else None):
        print(written)


def _steps(size: Size, named: Sequence[str]) -> list[Asked]:
    return [*asked(size), *scored(size), *(endless_asked(size) if ENDLESS in named else [])]


def _cell(one: Asked) -> str:
    return one.cell.removesuffix(BACK)


def finished(size: Size, several: Sequence[Asked], graph: Graph, *, every_way: bool = False) -> RunsFile:
    """The finished comparisons, with information about the run."""
    done = [one for one in several if graph.state(one.step) == "done"]
    steps = {
        step.key: step for one in done for step in (one.step, *one.step.inputs.values()) if graph.state(step) == "done"
    }
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    part = {
        "date": date,
        "seconds": round(graph.busy(steps.values())),
        "cells": [*dict.fromkeys(map(_cell, done))],
        "library": done[0].step.settings["library"] if done else "",
        "every_way": every_way,
    }
    about = {
        "size": size.name,
        "items": size.items,
        "hash": protocol_hash(),
        "date": date,
        "seconds": part["seconds"],
        "parts": [part],
        "machine": f"{platform.system()} {platform.machine()}",
        "likelihoods": [
            {"cell": one.cell, "task": one.task, "seed": one.seed, "ways": likelihoods_in(graph.path(one.step))}
            for one in done
            if one.step.kind == likelihoods.__name__
        ],
        "to_come": [one.step.name for one in several if one not in done],
    }
    compared = [one for one in done if one.step.kind == answers.__name__]
    return RunsFile([_run(one, size, comparison_in(graph.path(one.step))) for one in compared], about)


def _run(one: Asked, size: Size, found: Comparison) -> Run:
    drawn = one.task, items_seed(), size.items, found
    return Run(one.cell, one.task, one.seed, found, facts_asked(*drawn), slots_said(*drawn))


def listing(several: Sequence[Asked], graph: Graph) -> str:
    """The steps with their states, and the estimated remaining time."""
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
