"""Independent trainings: how many stand behind runs whose cells share models.

Many cells ask the same models, or models that others were made of. What they show together is no more than what their
trainings from nothing show: cells that share one of these are one family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.lab.plan import BACK
from benchmarks.lab.protocol import CELLS, RECIPES
from benchmarks.lab.runs import Run
from benchmarks.lab.studies import STUDIES

__all__ = ["Family", "families", "from_nothing", "independent"]

Training = tuple[str, int]
"""A recipe that begins with nothing, and the seed of its training."""

_CELLS = {cell.name: cell for cell in CELLS}
_STUDIED: Mapping[str, str] = {study.name: study.cell for study in STUDIES} | {"endless": "c-d"}
"""The cell whose models are asked by each study, and by `endless`, which changes a row of their weights."""


@dataclass(frozen=True)
class Family:
    """Runs that share trainings, directly or by way of others.

    Attributes:
        cells: names of their cells and studies, in the order of the runs.
        trainings: the trainings from nothing of all their models.
    """

    cells: tuple[str, ...]
    trainings: frozenset[Training]


def from_nothing(recipe: str) -> frozenset[str]:
    """The recipes, trained from nothing, that a model is made of: its own, or those of the models before it."""
    one = RECIPES[recipe]
    before = [one.begins] if one.begins else one.between or ()
    return frozenset[str]().union(*map(from_nothing, before)) if before else frozenset({recipe})


def families(runs: Sequence[Run]) -> list[Family]:
    """The families of some runs; no two share a training."""
    found: list[Family] = []
    for run in runs:
        cell = run.cell.removesuffix(BACK)
        asked = _CELLS[_STUDIED.get(cell, cell)]
        names = frozenset[str]().union(*map(from_nothing, (asked.draft, *asked.assistants)))
        mine = Family((cell,), frozenset((name, run.seed) for name in names))
        related = [one for one in found if one.trainings & mine.trainings]
        cells = dict.fromkeys(name for one in (*related, mine) for name in one.cells)
        joined = Family((*cells,), mine.trainings.union(*(one.trainings for one in related)))
        at = found.index(related[0]) if related else len(found)
        found = [one for one in found if one not in related]
        found.insert(at, joined)
    return found


def independent(runs: Sequence[Run]) -> int:
    """Number of independent trainings behind runs: of their families."""
    return len(families(runs))
