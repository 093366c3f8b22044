"""The number of independent trainings on which runs are based, because cells can share models.

Many cells use the same models, or models derived from the same trainings. Together, such cells cannot show more than
their trainings from scratch do. Cells that share a training from scratch form one family.
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
"""A recipe that is trained from scratch, and the seed of its training."""

_CELLS = {cell.name: cell for cell in CELLS}
_STUDIED: Mapping[str, str] = {study.name: study.cell for study in STUDIES} | {"endless": "c-d"}
"""For each study, the cell whose models it uses; `endless` changes a row of these models' weights."""


@dataclass(frozen=True)
class Family:
    """Runs that share trainings, directly or through other runs.

    Attributes:
        cells: names of the runs' cells and studies, in the order of the runs.
        trainings: the trainings from scratch that all their models are derived from.
    """

    cells: tuple[str, ...]
    trainings: frozenset[Training]


def from_nothing(recipe: str) -> frozenset[str]:
    """The recipes trained from scratch that a model is based on: its own, or those of the models it starts from."""
    one = RECIPES[recipe]
    before = [one.begins] if one.begins else one.between or ()
    return frozenset[str]().union(*map(from_nothing, before)) if before else frozenset({recipe})


def families(runs: Sequence[Run]) -> list[Family]:
    """The families of some runs; no two families share a training."""
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
    """The number of independent trainings that some runs are based on: the number of their families."""
    return len(families(runs))
