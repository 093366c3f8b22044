"""Functions that format the numbers on the laboratory's pages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from benchmarks.lab.claims import Decided, Evidence
from benchmarks.lab.runs import Run
from cosd_api.comparison.statistics import Estimated

__all__ = [
    "OF_THESE",
    "cost",
    "evidence",
    "interval",
    "mean_length",
    "percent",
    "points",
    "share",
    "trainings",
    "verdict",
]

OF_THESE = ", of these weights"
"""The words after a verdict that is based on a single training."""


def percent(value: float) -> str:
    """A share in per cent."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def points(found: Estimated | None) -> str:
    """A difference in points, with its interval."""
    if found is None or math.isnan(found.value):
        return "–"
    value, low, high = (
        f"{100 * end:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0")
        for end in (found.value, found.low, found.high)
    )
    return f"{value} [{low}, {high}]"


def evidence(one: Evidence, *, bound: bool = False) -> str:
    """A measurement in points and, if it cannot decide the claim, the reason."""
    shown = f"{one.what}: {points(one.effect)}" if one.effect is not None else ""
    if shown.startswith("growth"):  # a difference of growth factors, not of shares
        shown += " hundredths"
    if bound and one.bound and shown:
        shown += f" (to be above {100 * one.bound:+.0f})"
    return "; ".join(filter(None, [shown, one.undecidable]))


def trainings(one: Evidence) -> str:
    """The number of independent trainings that a measurement is based on; empty if nothing was measured."""
    return str(one.trainings) if one.p is not None else ""


def verdict(one: Decided) -> str:
    """The verdict on a claim, marked if it holds only for these weights."""
    return f"**{one.verdict}**" + OF_THESE * one.of_these_weights


def interval(found: Estimated) -> str:
    """A share in per cent, with its interval."""
    return f"{percent(found.value)} [{percent(found.low)}, {percent(found.high)}]"


def share(runs: Sequence[Run], way: str) -> float:
    """The mean share of right answers, as in `analysis.accuracy`, but without the costly interval."""
    seeds: dict[int, list[float]] = {}
    for run in runs:
        if right := run.right(way):
            seeds.setdefault(run.seed, []).append(statistics.fmean(right.values()))
    return statistics.fmean(map(statistics.fmean, seeds.values())) if seeds else math.nan


def cost(runs: Sequence[Run], way: str) -> tuple[float, float]:
    """The numbers of requests and billed tokens per answer, for all models together."""
    answers = [one for run in runs for one in run.comparison.answers_of(way).values()]
    requests = sum(use.requests for one in answers for use in one.usage.values())
    return requests / len(answers), sum(one.billed for one in answers) / len(answers)


def mean_length(runs: Sequence[Run], way: str) -> float:
    """The mean number of tokens per answer."""
    lengths = [one.tokens for run in runs for one in run.comparison.answers_of(way).values()]
    return statistics.fmean(lengths) if lengths else 0.0
