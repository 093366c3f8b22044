"""Further cells of a size, asked on another day, beside what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.lab.merging import merged, parts_of
from benchmarks.lab.page import page
from benchmarks.lab.plan import asked, scored
from benchmarks.lab.protocol import QUICK, TOY
from benchmarks.lab.runs import RunsFile
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")

ABOUT = {"size": "quick", "items": 10, "hash": "0" * 64, "date": "2026-01-01", "seconds": 61, "machine": "Linux"}
WAYS = {"cosd": {"ratio": [0.5, 0.25, 1], "perplexity": [2, 1, 3], "right": 1, "questions": 2}}


def _scored(cell: str, seed: int = 1) -> dict[str, Any]:
    return {"cell": cell, "task": "choice", "seed": seed, "ways": WAYS}


async def test_what_a_new_run_has_nothing_for_stays() -> None:
    old = [await run("a-b"), await run("a-b, reversed"), await run("n1", "steps")]
    kept = RunsFile(old, ABOUT | {"likelihoods": [_scored("a-b"), _scored("n1")], "to_come": ["something"]})
    again, three = await run("n1", "steps"), await run("three")
    part = {"date": "2026-01-02", "seconds": 120, "cells": ["n1", "three"], "library": "c" * 64}
    about = ABOUT | {"date": "2026-01-02", "seconds": 120, "parts": [part], "to_come": ["a", "b"]}
    new = RunsFile([again, three], about | {"likelihoods": [_scored("n1") | {"ways": {}}]})
    found = merged(kept, new, [])
    assert [id(one) for one in found.runs] == [id(one) for one in (*old[:2], again, three)]
    assert found.about["likelihoods"] == [_scored("a-b"), _scored("n1") | {"ways": {}}]
    assert (found.about["seconds"], found.about["date"], found.about["to_come"]) == (181, "2026-01-02", [])
    assert [one["cells"] for one in parts_of(found)] == [["a-b"], ["n1", "three"]]
    words = page(found)
    assert "| cells and studies | `a-b`, `n1` |" in words and 'NAME"`) | `three` |' in words
    assert (
        f"2026-01-01, 1 minute: `a-b`; 2026-01-02, 2 minutes, with the library `{'c' * 12}`: `n1`, `three` |" in words
    )
    # A later run of everything takes the place of both days.
    whole = {"parts": [part | {"cells": ["a-b", "n1", "three"]}], "likelihoods": found.about["likelihoods"]}
    all_again = RunsFile(found.runs, about | whole)
    assert len(parts_of(merged(found, all_again, []))) == 1


async def test_a_cell_that_is_asked_again_in_part_stands_under_both_days() -> None:
    kept = RunsFile(
        [await run("a-b"), await run("a-b, reversed"), await run("n1"), await run("c-d")],
        ABOUT | {"likelihoods": [_scored("c-d")]},
    )
    part = {"date": "2026-01-02", "seconds": 9, "cells": ["a-b", "n1", "c-d"], "library": "c" * 64}
    several = [await run("a-b"), await run("n1"), await run("c-d")]
    new = RunsFile(several, ABOUT | {"parts": [part], "likelihoods": []})
    assert [one["cells"] for one in parts_of(merged(kept, new, []))] == [["a-b", "c-d"], ["a-b", "n1", "c-d"]]


async def test_other_questions_are_never_put_together() -> None:
    kept = RunsFile([await run("a-b")], ABOUT | {"likelihoods": [], "to_come": []})
    for change in ({"hash": "1" * 64}, {"items": 11}):
        new = RunsFile([await run("n1")], kept.about | change)
        assert merged(kept, new, []) is new


async def test_what_is_kept_is_not_to_come() -> None:
    """Comparisons and scored texts are told apart."""
    several = [*asked(TOY), *scored(QUICK)]
    kept = RunsFile([await run("c-d", "bio")], ABOUT | {"likelihoods": [_scored("c-d")], "to_come": []})
    new = RunsFile([await run("n1", "bio")], ABOUT | {"likelihoods": [], "to_come": []})
    to_come = merged(kept, new, several).about["to_come"]
    names = [one.step.name for one in several]
    gone = [name for name in names if name.startswith(("c-d: bio, ", "n1: bio, ", "c-d: choice by"))]
    assert len(gone) == 3 and to_come == [name for name in names if name not in gone]
