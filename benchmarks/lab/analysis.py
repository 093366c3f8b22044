"""Numbers of the laboratory: means over tasks with intervals, tests, calibration, errors that were found.

A mean over tasks gives each task the same weight, and so each seed. Its interval is the wider, at each end, of two: a
percentile bootstrap, in which seeds are drawn with replacement and then the questions of each task within a seed; and
the intervals of the single tasks (Wilson's for a share, Newcombe's for a difference), combined by the squares of their
distances from the estimate (Zou and Donner, 2008), which does not collapse where few questions differ. With one seed
neither knows what another training would have given.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.lab.runs import ALONE, Run
from cosd_api.comparison.contestants import BEST, ORACLE
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.result import PlaceCounts
from cosd_api.comparison.statistics import (
    Estimated,
    PairedCounts,
    calibration,
    holm,
    mcnemar,
    paired_difference,
    wilson,
)

__all__ = [
    "Caught",
    "Row",
    "accuracy",
    "calibration_error",
    "caught",
    "combined",
    "counts",
    "difference",
    "drawn",
    "gain",
    "of_tasks",
    "places",
    "replaced_or_changed",
    "sure_and_wrong",
    "table",
    "ways",
]

SURE = 0.5
"""The rule's alpha: where every token of an answer has at least this probability, the rule asks nobody."""

_DRAWS = 1000
_SEED = 20


def drawn(values: Sequence[Sequence[Sequence[float]]], level: float = 0.95) -> Estimated:
    """The mean over seeds, tasks and questions of `values[seed][task][question]`, with its bootstrap interval."""

    def mean(seeds: Sequence[Sequence[Sequence[float]]]) -> float:
        return statistics.fmean(statistics.fmean(sum(task) / len(task) for task in seed) for seed in seeds)

    draw = random.Random(_SEED)
    found = sorted(
        mean([[draw.choices(task, k=len(task)) for task in seed] for seed in draw.choices(values, k=len(values))])
        for _ in range(_DRAWS)
    )
    cut = round(_DRAWS * (1 - level) / 2)
    return Estimated(mean(values), found[cut], found[-1 - cut])


def combined(parts: Sequence[Sequence[Estimated]]) -> Estimated:
    """The mean of independent estimates `parts[seed][task]`, with their intervals combined."""
    weights = [1 / len(parts) / len(seed) for seed in parts for _ in seed]
    several = [*chain.from_iterable(parts)]
    value = math.fsum(weight * one.value for weight, one in zip(weights, several, strict=True))
    low = math.hypot(*(weight * (one.value - one.low) for weight, one in zip(weights, several, strict=True)))
    high = math.hypot(*(weight * (one.high - one.value) for weight, one in zip(weights, several, strict=True)))
    return Estimated(value, value - low, value + high)


Part = tuple[Sequence[float], Estimated]
"""Of one seed and task: the questions' values, and their mean with its interval."""


def _mean(runs: Sequence[Run], of: Callable[[Run], Part]) -> Estimated:
    """The mean over seeds and tasks, with the wider of both intervals; runs without questions are left out."""
    seeds = [[of(run) for run in runs if run.seed == seed] for seed in sorted({run.seed for run in runs})]
    seeds = [found for seed in seeds if (found := [part for part in seed if part[0]])]
    if not seeds:
        return Estimated(math.nan, -1.0, 1.0)
    first = drawn([[values for values, _ in seed] for seed in seeds])
    second = combined([[one for _, one in seed] for seed in seeds])
    return Estimated(first.value, min(first.low, second.low), max(first.high, second.high))


def of_tasks(runs: Sequence[Run], tasks: Sequence[str] | None) -> list[Run]:
    """The runs of some tasks; of all if there are none given."""
    return [one for one in runs if tasks is None or one.task in tasks]


def ways(runs: Sequence[Run]) -> list[str]:
    """Names of all that answered in each of the runs."""
    return [name for name in runs[0].ways if all(name in one.ways for one in runs)] if runs else []


def accuracy(runs: Sequence[Run], way: str) -> Estimated:
    """Mean share of right answers."""

    def share(run: Run) -> Part:
        right = [*run.right(way).values()]
        return [float(one) for one in right], wilson(sum(right), len(right))

    return _mean(runs, share)


def difference(runs: Sequence[Run], first: str, second: str) -> Estimated:
    """Mean difference of the shares of right answers, on the questions that both have answered."""

    def apart(run: Run) -> Part:
        pairs = _pairs(run, first, second)
        counted = PairedCounts.of([mine for mine, _ in pairs], [theirs for _, theirs in pairs])
        return [float(mine) - float(theirs) for mine, theirs in pairs], paired_difference(counted)

    return _mean(runs, apart)


def _pairs(run: Run, first: str, second: str) -> list[tuple[bool, bool]]:
    mine, theirs = run.right(first), run.right(second)
    return [(mine[key], theirs[key]) for key in mine if key in theirs]


def gain(runs: Sequence[Run], way: str) -> Estimated:
    """The difference to the better model of each task, which the development questions have chosen."""
    return difference(runs, way, BEST)


def counts(runs: Sequence[Run], first: str, second: str) -> PairedCounts:
    """Questions that both, one or neither has right, of all tasks and seeds together."""
    pairs = [*chain.from_iterable(_pairs(run, first, second) for run in runs)]
    return PairedCounts.of([mine for mine, _ in pairs], [theirs for _, theirs in pairs])


# The table by method.


@dataclass(frozen=True)
class Row:
    """One way to answer, over all tasks and seeds of a cell.

    Attributes:
        way: its name.
        accuracy: mean over tasks.
        gain: to the better model of each task; None for a model alone.
        counts: likewise, of all questions together.
        p: of McNemar's exact test on them; None where nothing is tested.
        holm: adjusted for all ways of the cell that are tested.
        acceptance: mean share of the draft's tokens kept; None where no draft is judged.
        iterations: mean number of drafts for an answer: its replacements and one; None likewise.
        requests: mean number for an answer.
        tokens: mean number of tokens billed for an answer, by both endpoints.
        milliseconds: median over answers of the milliseconds for a token.
        first: median milliseconds until the first token was final; None if there is none.
    """

    way: str
    accuracy: Estimated
    gain: Estimated | None
    counts: PairedCounts | None
    p: float | None
    holm: float | None
    acceptance: float | None
    iterations: float | None
    requests: float
    tokens: float
    milliseconds: float
    first: float | None


def table(runs: Sequence[Run]) -> list[Row]:
    """All ways to answer of a cell, tested by McNemar against the better model of each task, and adjusted by Holm."""
    names = ways(runs)
    tested = {name: counts(runs, name, BEST) for name in names if name not in (*ALONE, BEST, ORACLE)}
    values = {name: mcnemar(found) for name, found in tested.items()}
    adjusted = dict(zip(values, holm([*values.values()]), strict=True))
    return [_row(runs, name, tested.get(name), values.get(name), adjusted.get(name)) for name in names]


def _row(runs: Sequence[Run], way: str, paired: PairedCounts | None, p: float | None, corrected: float | None) -> Row:
    answers = [*chain.from_iterable(_bills(run, way) for run in runs)]
    single = [*chain.from_iterable(answers)]
    rates = [one.acceptance for one in single if one.acceptance is not None]
    firsts = [one.first_token for one in single if one.first_token is not None]
    drafts = [len(one.replaced) + 1 for one in single if one.units is not None]
    return Row(
        way=way,
        accuracy=accuracy(runs, way),
        gain=None if way in (*ALONE, BEST) else gain(runs, way),
        counts=paired,
        p=p,
        holm=corrected,
        acceptance=statistics.fmean(rates) if rates else None,
        iterations=statistics.fmean(drafts) if drafts else None,
        requests=sum(use.requests for one in single for use in one.usage.values()) / len(answers),
        tokens=sum(one.billed for one in single) / len(answers),
        milliseconds=statistics.median(1000 * (one.seconds or 0.0) / max(1, one.tokens) for one in single),
        first=1000 * statistics.median(firsts) if firsts else None,
    )


def _bills(run: Run, way: str) -> list[list[GradedAnswer]]:
    """For each test question, the answers that are paid for."""
    names = {BEST: (run.comparison.better,), ORACLE: ALONE}.get(way, (way,))
    several = [run.comparison.answers_of(name) for name in names]
    return [[one[key] for one in several] for key in several[0] if all(key in one for one in several)]


# Confidence.


def sure_and_wrong(runs: Sequence[Run], model: str) -> tuple[int, int]:
    """Number of a model's wrong answers of which it is nowhere unsure, and of its wrong answers; test questions."""
    wrong = [one for one in _alone(runs, model) if not one.right]
    return sum(one.least is not None and one.least >= SURE for one in wrong), len(wrong)


def calibration_error(runs: Sequence[Run], model: str) -> float:
    """The expected calibration error of a model alone, by the least probability of an answer's tokens."""
    return calibration([(one.least, bool(one.right)) for one in _alone(runs, model) if one.least is not None]).error


def _alone(runs: Iterable[Run], model: str) -> list[GradedAnswer]:
    return [one for run in runs for one in run.comparison.answers_of(model).values()]


@dataclass(frozen=True)
class Caught:
    """The answers of which the draft was nowhere unsure, and what became of them.

    Attributes:
        wrong: number of those that were wrong.
        mended: number of these that the way to answer has right.
        right: number of those that were right.
        spoilt: number of these that it has wrong.
    """

    wrong: int
    mended: int
    right: int
    spoilt: int


def caught(runs: Sequence[Run], way: str) -> Caught:
    """Count what became of the draft's sure answers."""
    pairs: list[tuple[bool, bool]] = []
    for run in runs:
        mine = run.right(way)
        alone = run.comparison.answers_of("draft")
        sure = [key for key, one in alone.items() if one.least is not None and one.least >= SURE and key in mine]
        pairs += [(bool(alone[key].right), mine[key]) for key in sure]
    before = [was for was, _ in pairs]
    return Caught(
        wrong=before.count(False),
        mended=pairs.count((False, True)),
        right=before.count(True),
        spoilt=pairs.count((True, False)),
    )


def places(runs: Sequence[Run], way: str) -> PlaceCounts | None:
    """Who was right at the replaced places, in all runs together; None where no draft is judged."""
    found = [one for one in (run.comparison[way].replaced for run in runs) if one is not None]
    if not found:
        return None
    whole = [one.answers for one in found]
    return PlaceCounts(
        **{
            name: sum(getattr(one, name) for one in found)
            for name in ("places", "assistant", "draft", "neither", "unknown")
        },
        answers=PairedCounts(
            *(sum(getattr(one, name) for one in whole) for name in ("both", "won", "lost", "neither"))
        ),
    )


def replaced_or_changed(runs: Sequence[Run]) -> tuple[int, int, int]:
    """Replaced places, answers that differ from the model's own, and answers; where drafts are judged (for N1)."""
    replaced = changed = total = 0
    for run in runs:
        alone = run.comparison.answers_of("draft")
        judged = [one for one in run.comparison.answers if one.units is not None and one.question in alone]
        replaced += sum(len(one.replaced) for one in judged)
        changed += sum(one.text != alone[one.question].text for one in judged)
        total += len(judged)
    return replaced, changed, total
