"""Kept runs: they give the same numbers again."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from benchmarks.lab.analysis import table
from benchmarks.lab.page import page
from benchmarks.lab.protocol import WORLD_SEED
from benchmarks.lab.runs import Run, RunsFile, _statements, read_runs, write_runs
from benchmarks.lab.tasks import TASKS
from benchmarks.lab.worlds import World
from cosd_api.comparison.result import Comparison
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")

ABOUT = {
    "size": "quick",
    "items": 10,
    "date": "2026-01-01",
    "hash": "0" * 64,
    "machine": "Linux",
    "seconds": 61,
    "to_come": [],
    "likelihoods": [],
}


async def test_runs_come_back_with_the_same_numbers(tmp_path: Path) -> None:
    file = RunsFile([await run(), await run("n1", "steps")], ABOUT)
    write_runs(tmp_path / "runs", file)
    found = read_runs(tmp_path / "runs")
    assert found.about == ABOUT
    assert [(one.cell, one.task, one.seed) for one in found.runs] == [("a-b", "bio", 1), ("n1", "steps", 1)]
    for mine, theirs in zip(file.runs, found.runs, strict=True):
        assert table([mine]) == table([theirs])
    assert page(found) == page(file)


async def test_the_page_says_what_was_run_and_what_was_not() -> None:
    words = page(RunsFile([await run(), await run("a-b", "mixed"), await run("n1")], ABOUT))
    assert "| cells and studies | `a-b`, `n1` |" in words
    assert "`n2`" in words.split("| not run |")[1].splitlines()[0]
    assert "## What this does not show" in words
    assert "### Apart from the headline" in words
    assert "{" not in words


def test_questions_about_one_fact_are_one_cluster() -> None:
    """Also where a file was kept before this was written into it."""
    several = TASKS["bio"].items(World(WORLD_SEED), 3, 60)
    found = _statements("bio", 3, 60)
    runs = [Run("a-b", task, 1, cast("Comparison", None), found) for task in ("bio", "choice", "steps")]
    by_fact: dict[str, set[tuple[str, str]]] = {}
    for one in several:
        by_fact.setdefault(one.answer, set()).add(runs[0].cluster(one.key))
    assert len(by_fact) < 60 and all(len(clusters) == 1 for clusters in by_fact.values())
    assert len({chosen for clusters in by_fact.values() for chosen in clusters}) == len(by_fact)
    # A question with options asks for the same fact, and has its cluster.
    facts = {one.answer.strip().rstrip(".") for one in TASKS["choice"].items(World(WORLD_SEED), 3, 60)}
    assert facts & {*found.values()}
    assert runs[0].cluster(several[0].key) == runs[1].cluster(several[0].key) != runs[2].cluster(several[0].key)
    assert Run("a-b", "report 256", 1, cast("Comparison", None)).kind == "report"
