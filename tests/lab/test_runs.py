"""What was kept gives the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab.analysis import table
from benchmarks.lab.page import page
from benchmarks.lab.runs import RunsFile, read_runs, write_runs
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")

ABOUT = {
    "size": "toy",
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
    assert "| cells | `a-b`, `n1` |" in words
    assert "`n2`" in words.split("| cells of the full size alone |")[1].splitlines()[0]
    assert "## What this does not show" in words
    assert "### Apart from the headline" in words
    assert "{" not in words
