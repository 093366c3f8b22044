"""The contrast that decides whether `cosd-1-1` beats the paper's rule: `python -m benchmarks.lab.confirmation`.

`cosd-1-1` was selected on the same answers that show its lead. README.md in this folder therefore specified one
contrast in advance, and the criterion that it must meet on new questions with new models. This module prints the
outcome.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.analysis import accuracy, counts, difference, of_tasks, sign_flips
from benchmarks.lab.protocol import FOLDER, HEADLINE
from benchmarks.lab.runs import Run, of_cell, read_runs
from benchmarks.report import Table, bare

FIRST, SECOND = "cosd-1-1", "cosd"
AHEAD, NOT_BEHIND = ("c-d", "a-b"), "half"
"""The cells in which the first way must be ahead, and the cell in which it must not lose `MARGIN` or more."""
MARGIN = -0.05
LEVEL = 0.05
KEPT = FOLDER / "results" / "confirmation" / "quick.jsonl.xz"
_ALL = "all"


@dataclass(frozen=True)
class Contrast:
    """The contrast in one cell, for one training or for all trainings.

    Attributes:
        cell: name of the cell.
        seed: seed of the training; None for all trainings together.
        value: the first way minus the second, as a share of the questions.
        low: the lower end of the 95 % interval.
        high: the upper end of the 95 % interval.
        won: number of questions that only the first way gets right.
        lost: number of questions that only the second way gets right.
        p: two-sided p-value of the sign-flip test.
        runs: the runs.
    """

    cell: str
    seed: int | None
    value: float
    low: float
    high: float
    won: int
    lost: int
    p: float
    runs: Sequence[Run]

    @property
    def holds(self) -> bool:
        """True if the contrast meets the criterion, which applies to each training separately."""
        if self.cell == NOT_BEHIND:
            return self.low > MARGIN
        return self.value > 0 and self.p <= LEVEL


def contrasts(runs: Sequence[Run]) -> list[Contrast]:
    """The contrast in each cell and training, over the headline's tasks; the models have their original roles."""
    found: list[Contrast] = []
    for cell in (*AHEAD, NOT_BEHIND):
        mine = of_tasks(of_cell(runs, cell), HEADLINE)
        for seed in (*sorted({one.seed for one in mine}), None):
            several = [one for one in mine if seed in (None, one.seed)]
            apart, paired = difference(several, FIRST, SECOND), counts(several, FIRST, SECOND)
            p = sign_flips(several, FIRST, SECOND)
            found.append(Contrast(cell, seed, apart.value, apart.low, apart.high, paired.won, paired.lost, p, several))
    return found


def table(found: Sequence[Contrast]) -> Table:
    """The table of all contrasts, in points."""
    rows = [
        [
            one.cell,
            _ALL if one.seed is None else one.seed,
            f"{100 * accuracy(one.runs, SECOND).value:.1f}",
            f"{100 * accuracy(one.runs, FIRST).value:.1f}",
            f"{100 * one.value:+.1f}",
            f"[{100 * one.low:+.1f}, {100 * one.high:+.1f}]",
            f"{one.won}:{one.lost}",
            "< 0.001" if one.p < 0.001 else f"{one.p:.3f}",
            "" if one.seed is None else "yes" if one.holds else "no",
        ]
        for one in found
    ]
    columns = ["cell", "seed", f"{SECOND}, %", f"{FIRST}, %", "difference", "95 %", "won:lost", "p", "as required"]
    return Table(f"{FIRST} less {SECOND}, on fresh questions", columns, rows)


def verdict(found: Sequence[Contrast]) -> str:
    """A sentence that says that the contrast is confirmed, or which contrasts failed."""
    failed = [*_failed(found)]
    if not failed:
        return f"Confirmed: {FIRST} is ahead of {SECOND} as the criterion requires, in every cell and training."
    return f"Not confirmed. It fails in {', '.join(failed)}."


def _failed(found: Sequence[Contrast]) -> Iterator[str]:
    for one in found:
        if one.seed is not None and not one.holds:
            yield f"{one.cell} (seed {one.seed})"


def confirmed(path: Path = KEPT) -> str:
    """The table and the verdict of the kept runs, as Markdown."""
    found = contrasts(read_runs(path).runs)
    return f"{bare(table(found))}\n\n{verdict(found)}"


def main() -> None:
    """Print the table and the verdict."""
    parser = argparse.ArgumentParser("python -m benchmarks.lab.confirmation", description=main.__doc__)
    parser.add_argument("runs", nargs="?", type=Path, default=KEPT)
    found = contrasts(read_runs(parser.parse_args().runs).runs)
    print(table(found).markdown())
    print(verdict(found))


if __name__ == "__main__":
    main()
