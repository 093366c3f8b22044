"""The parts of a table, its numbers with their intervals, and its printed forms."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from _columns import Column
from _tasks import ACCURACY, TASKS, Measure
from scipy.stats import ttest_1samp

from cosd_api import Example
from cosd_api.apps.comparison.journal import GradedAnswer
from cosd_api.apps.comparison.statistics import Estimated, wilson
from cosd_api.common.wording import counted
from cosd_api.version import __version__

Answers = Mapping[str, Mapping[str, GradedAnswer]]
"""Answers by column, then by `Example.key`."""
Limited = tuple[str, int]
"""The name of a task, and the token limit for its answers."""
Asked = Mapping[Limited, tuple[Sequence[Example], Answers]]


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: the paper's name for the row.
        tasks: keys of `TASKS`; the values of several tasks are added up.
        measure: the measured quantity.
        weight: factor of the sum, such as 1/3 for the mean of three tasks.
        max_tokens: token limit for each answer; None for the task's own limit.
    """

    name: str
    tasks: tuple[str, ...]
    measure: Measure = ACCURACY
    weight: float = 1.0
    max_tokens: int | None = None


def row(task: str, measure: Measure = ACCURACY) -> Row:
    """The row of one task, named by the task's title."""
    return Row(TASKS[task].title, (task,), measure)


Printed = Mapping[str, Mapping[str, Sequence[float | None]]]
"""The paper's figures, by pair and row, in the order of the columns."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a paper.

    Attributes:
        name: name of the files that are written.
        title: the title, with the paper's own table number.
        columns: the columns, in the paper's order.
        rows: the rows, in the paper's order.
        printed: the paper's figures. Only pairs with such figures are measured, unless other pairs are named.
        models: the paper's models, by pair.
        more: tasks that are not in the paper; they are asked if their files exist.
        scale: factor by which the numbers are multiplied; 100 for per cent.
        concurrency: number of concurrent answers; 1 if time is measured.
        notes: notes for the reader.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    printed: Printed
    models: Mapping[str, str]
    more: Sequence[str] = ()
    scale: float = 100.0
    concurrency: int = 4
    notes: Sequence[str] = ()

    @property
    def models_needed(self) -> int:
        return 1 + max(max(one.models, default=1) for one in self.columns)


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        pair: name of the pair.
        row: name of the row.
        column: name of the column.
        ours: the measured number; None if nothing was measured.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
        questions: number of answers that the number is based on.
        printed: the paper's figure.
    """

    pair: str
    row: str
    column: str
    ours: float | None
    low: float | None
    high: float | None
    questions: int
    printed: float | None


@dataclass(frozen=True)
class ModelUsed:
    """A model as its server names it, with the revision given in the file of pairs."""

    model: str
    revision: str | None


@dataclass
class Found:
    """The results of a run."""

    cells: list[Cell] = field(default_factory=list[Cell])
    notes: list[str] = field(default_factory=list[str])
    models: dict[str, list[ModelUsed]] = field(default_factory=dict[str, list[ModelUsed]])
    billed: int = 0
    stopped: str | None = None


# Numbers.


def estimated(measure: Measure, examples: Sequence[Example], answers: Mapping[str, GradedAnswer]) -> Estimated:
    """The mean of a measure over the answers to some questions, with its interval."""
    several = [(one, answers[one.key]) for one in examples if one.key in answers]
    values = [value for one, answer in several if (value := measure.of(one, answer)) is not None]
    return wilson([(bool(one), 1) for one in values]) if measure.share else mean(values)


def mean(values: Sequence[float]) -> Estimated:
    """The mean of values, with Student's 95 % interval, which is unbounded for fewer than two values."""
    if len(values) < 2:
        return Estimated(math.fsum(values) if values else math.nan, -math.inf, math.inf)
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    return Estimated(math.fsum(values) / len(values), float(low), float(high))


def added(several: Sequence[Estimated], factor: float) -> Estimated:
    """The sum of independent estimates, multiplied by a factor.

    The intervals are combined as in Newcombe's method 10 (Zou and Donner, 2008): the squared distances of the ends from
    the estimates are added, as for independent errors.
    """
    total = math.fsum(one.value for one in several)
    below = math.hypot(*(one.value - one.low for one in several))
    above = math.hypot(*(one.high - one.value for one in several))
    return Estimated(factor * total, factor * (total - below), factor * (total + above))


def cells_of(
    table: Table,
    pair: str,
    one: Row,
    asked: Asked,
    limits: Sequence[Limited],
) -> list[Cell]:
    """The cells of one row, with a number for each column."""
    printed = table.printed.get(pair, {}).get(one.name, [None] * len(table.columns))
    found: list[Cell] = []
    for column, figure in zip(table.columns, printed, strict=True):
        parts: list[Estimated] = []
        questions = 0
        for task, limit in limits:
            examples, answers = asked.get((task, limit), ([], {}))
            mine = answers.get(column.name, {})
            parts.append(estimated(one.measure, examples, mine))
            questions += len(mine)
        value = added(parts, one.weight * (table.scale if one.measure.share else 1))
        ours, low, high = (end if math.isfinite(end) else None for end in (value.value, value.low, value.high))
        found.append(Cell(pair, one.name, column.name, ours, low, high, questions, figure))
    return found


# Printing.

HEADS = ("pair", "row", "column", "ours", "95 %", "answers", "printed")


def lines_of(table: Table, found: Found) -> list[tuple[str, ...]]:
    """The rows of the printed table, one per measured cell."""
    digits = 2 if table.scale == 100 else 4

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    return [
        (
            one.pair,
            one.row,
            one.column,
            number(one.ours),
            f"{number(one.low)} to {number(one.high)}" if one.low is not None else "",
            str(one.questions or ""),
            number(one.printed),
        )
        for one in found.cells
    ]


def about(table: Table, found: Found) -> list[str]:
    """The notes under a table."""
    notes = [
        f"{name}: here {' + '.join(one.model for one in models)}; in the paper {table.models.get(name, 'no such pair')}"
        for name, models in found.models.items()
    ]
    shares = {one.name for one in table.rows if one.measure.share and len(one.tasks) == 1}
    for size in sorted({one.questions for one in found.cells if one.questions and one.row in shares}):
        points = 98 / math.sqrt(size)
        notes.append(f"{counted(size, 'answer')}: a share near one half is known to plus or minus {points:.1f} points")
    return [*notes, *table.notes, *found.notes, *([f"NOT COMPLETE: {found.stopped}"] if found.stopped else [])]


def as_text(rows: Sequence[tuple[str, ...]]) -> str:
    """The table as plain text, in aligned columns; the name of a pair or row is printed only when it changes."""
    widths = [max(len(one[at]) for one in [HEADS, *rows]) for at in range(len(HEADS))]
    lines: list[str] = []
    before: tuple[str, ...] = ("", "")
    for one in [HEADS, *rows]:
        shown = ("" if one[0] == before[0] else one[0], "" if one[:2] == before[:2] else one[1], *one[2:])
        lines.append(
            "  ".join(f"{cell:{'<' if at < 3 else '>'}{widths[at]}}" for at, cell in enumerate(shown)).rstrip()
        )
        before = one
    return "\n".join(lines)


def as_markdown(table: Table, rows: Sequence[tuple[str, ...]], notes: Sequence[str]) -> str:
    """The table as Markdown, with its notes as a list."""
    lines = [f"# {table.title}", "", *(f"| {' | '.join(one)} |" for one in [HEADS, ("---",) * len(HEADS), *rows])]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def as_json(table: Table, found: Found, notes: Sequence[str], settings: Mapping[str, object]) -> str:
    """The table as JSON, for programs, with the models' revisions."""
    content = {
        "table": table.title,
        "models": {name: [asdict(one) for one in several] for name, several in found.models.items()},
        "settings": settings,
        "cells": [asdict(one) for one in found.cells],
        "notes": [*notes],
        "billed_tokens_of_this_run": found.billed,
        "complete": found.stopped is None,
        "library_version": __version__,
    }
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
