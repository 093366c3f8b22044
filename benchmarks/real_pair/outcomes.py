"""Tables of answers from several runs: right answers by family, and differences with simultaneous intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.report import Cell, Table
from cosd_api.apps.comparison.journal import AnswerUsage
from cosd_api.apps.comparison.statistics import Joint, Outcomes, PairedDifference, SignFlips, bound, squares_of

__all__ = ["Answered", "apart", "better", "lower_bound", "outcomes_of", "points", "share_of", "uncached"]


@dataclass(frozen=True)
class Answered:
    """An answer and its grade.

    Attributes:
        way: the way that produced the answer.
        question: key of the question, preceded by the training's number if there are several trainings.
        family: the question's family.
        group: the fact or calculation that the question is about, which several questions can share.
        right: whether the answer is right.
        uncached: number of tokens that the servers read without a cache hit or wrote.
        seconds: duration of the answer; 0 if no server was asked.
        text: the answer, if it is kept.
    """

    way: str
    question: str
    family: str
    group: str
    right: bool
    uncached: float
    seconds: float = 0.0
    text: str = ""


def uncached(usages: Iterable[AnswerUsage]) -> int:
    """The number of tokens that all servers together read without a cache hit or wrote."""
    return sum(one.read - one.cached + one.written for one in usages)


def outcomes_of(several: Sequence[Answered], models: Sequence[str]) -> Outcomes:
    """The outcomes of those questions that every way has answered."""
    right: dict[str, dict[str, bool]] = {}
    for one in several:
        right.setdefault(one.way, {})[one.question] = one.right
    common = set.intersection(*map(set, right.values()))
    right = {way: {key: mine[key] for key in sorted(common)} for way, mine in right.items()}
    groups = {one.question: one.group for one in several}
    return Outcomes(models=models, questions=sorted(common), right=right, groups=groups)


def apart(title: str, several: Sequence[Answered], models: Sequence[str], ceiling: str = "") -> Table:
    """Right answers in per cent by way and family, differences from each model with simultaneous intervals, and costs.

    All questions of a group together count as one piece of evidence. `ceiling` names a way that is right if any model
    is. The questions that another way has right beyond it (*rescued*), and those that it has wrong (*lost*), are
    tested apart from the differences from the models.
    """
    outcomes = outcomes_of(several, models)
    ways = [*dict.fromkeys(one.way for one in several)]
    tested = [one for one in ways if one not in (*models, ceiling)]
    joint, above = Joint(outcomes, tested), Joint(outcomes, tested, [ceiling]) if ceiling else None
    keys = {*outcomes.questions}
    inside = [one for one in several if one.question in keys]
    families = [*dict.fromkeys(one.family for one in inside)]
    rows: list[list[Cell]] = []
    for way in ways:
        mine = [one for one in inside if one.way == way]
        shares = [_share([one for one in mine if one.family == family]) for family in families]
        differences = ["" if way == model else points(joint.difference(way, model)) for model in models]
        if above is not None:
            apart = above.difference(way, ceiling)
            counted = f"{apart.counts.won}:{apart.counts.lost}" if way in tested else ""
            differences += [counted, points(apart) if way in tested else ""]
        rows.append([way, *shares, _share(mine), *differences, *_costs(mine, inside, models[0])])
    counts = [sum(one.family == family for one in inside) // len(ways) for family in families]
    named = [f"{family} ({count:,})" for family, count in zip(families, counts, strict=True)]
    compared = [*(f"vs {model}" for model in models), *(("rescued:lost", "vs ceiling") if ceiling else ())]
    columns = ["", *named, f"all ({len(keys):,})", *compared, "uncached", "time"]
    return Table(title, columns, rows)


def share_of(table: Table, family: str = "all") -> int:
    """The column of `apart` with the right answers to the questions of a family, in per cent."""
    return next(n for n, name in enumerate(table.columns) if name.startswith(f"{family} ("))


def better(table: Table) -> int:
    """The column of `apart` with the differences from the better model alone."""
    share = share_of(table)
    alone = {str(row[0]): float(str(row[share])) for row in table.rows if f"vs {row[0]}" in table.columns}
    return table.columns.index(f"vs {max(alone, key=lambda one: alone[one])}")


def _costs(mine: Sequence[Answered], several: Sequence[Answered], draft: str) -> list[str]:
    """The mean number of uncached tokens, and the mean duration as a multiple of the draft's."""
    alone = [one.seconds for one in several if one.way == draft]
    seconds = sum(one.seconds for one in mine) / len(mine)
    time = f"{seconds * len(alone) / sum(alone):.1f}" if seconds and sum(alone) else ""
    return [f"{sum(one.uncached for one in mine) / len(mine):,.0f}" if time else "", time]


def lower_bound(several: Sequence[Answered], one: str, other: str, level: float = 0.05) -> tuple[float, float]:
    """The difference between two ways and its one-sided lower confidence bound, for a test of non-inferiority."""
    outcomes = outcomes_of([each for each in several if each.way in (one, other)], (one, other))
    sums = outcomes.sums(outcomes.pairs(one, other))
    half = bound(SignFlips(sums).statistics(sums), level) * math.sqrt(max(squares_of(sums), 1))
    total, questions = sum(sums.values()), len(outcomes.questions)
    return total / questions, (total - half) / questions


def points(one: PairedDifference) -> str:
    """A difference in points with its simultaneous interval, such as `+5.3 (+1 to +9)`."""
    if one.interval is None or math.isnan(one.value):
        return ""
    low, high = (f"{100 * end:+.0f}" for end in (one.interval.low, one.interval.high))
    return f"{100 * one.value:+.1f} ({low} to {high})"


def _share(several: Sequence[Answered]) -> str:
    return f"{100 * sum(one.right for one in several) / len(several):.1f}" if several else ""
