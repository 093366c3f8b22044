"""Cells that share a training are one family."""

from __future__ import annotations

import pytest

from benchmarks.lab.families import families, from_nothing, independent
from benchmarks.lab.protocol import CELLS, RECIPES
from benchmarks.lab.studies import STUDIES
from lab_runs import run


@pytest.mark.parametrize(
    ("recipe", "of"),
    [("a", "a"), ("b-flat", "b"), ("forgot-badly", "half"), ("between-badly", "half"), ("half-other", "half-other")],
)
def test_a_model_goes_back_to_what_was_trained_from_nothing(recipe: str, of: str) -> None:
    assert from_nothing(recipe) == {of}
    assert RECIPES[of].begins is None is RECIPES[of].between


async def test_cells_are_joined_by_what_they_share() -> None:
    names = ["a-b", "closed", "flat", "latency", "c-d, reversed", "n6", "forgot-badly", "half", "endless"]
    found = families([await run(cell) for cell in names])
    assert [one.cells for one in found] == [
        ("a-b", "flat"),
        ("closed",),
        ("latency", "c-d", "n6", "endless"),
        ("forgot-badly", "half"),
    ]
    assert found[0].trainings == {("a", 1), ("b", 1)}
    # `three` shares none with those that `three-weak` has joined to it before.
    assert independent([await run("three"), await run("three-weak"), await run("three", seed=2)]) == 2


async def test_a_cell_joins_families_that_were_apart() -> None:
    names = ["n3", "a-b", "n2", "n4"]
    assert [one.cells for one in families([await run(cell) for cell in names])] == [("n3", "n2", "n4"), ("a-b",)]


async def test_every_cell_and_study_has_a_family() -> None:
    one = await run()
    names = [*(cell.name for cell in CELLS), *(study.name for study in STUDIES)]
    several = families([type(one)(name, one.task, one.seed, one.comparison) for name in names])
    assert sorted(name for family in several for name in family.cells) == sorted(names)
    shared = [training for family in several for training in family.trainings]
    assert len(shared) == len({*shared})
