"""Long answers: right statements in each part of an answer, and the growth of the number of drafts with the length."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.lab import analysis
from benchmarks.lab.runs import Run
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.statistics import Estimated

__all__ = ["PARTS", "growth", "growth_p", "longest", "slots"]

PARTS = 4
"""The number of parts into which a report is divided; the share of right statements is reported for each part."""


def longest(runs: Sequence[Run], way: str) -> int:
    """The number of tokens in the longest answer."""
    return max((one.tokens for run in runs for one in run.comparison.answers_of(way).values()), default=0)


def growth(first: Sequence[Run], last: Sequence[Run], way: str, level: float = 0.95) -> Estimated:
    """The growth of the mean answer length minus the growth of drafts per answer, bootstrapped over questions."""
    value, found = _drawn(first, last, way)
    cut = round(analysis.DRAWS * (1 - level) / 2)
    return Estimated(value, found[cut], found[-1 - cut])


def growth_p(first: Sequence[Run], last: Sequence[Run], way: str) -> float:
    """The p-value of `growth` against 0: twice the share of the bootstrap's draws on the other side of 0.

    A sign-flip test, which is used for right and wrong answers, is impossible for ratios of means.
    """
    value, found = _drawn(first, last, way)
    beyond = sum(one <= 0 if value > 0 else one >= 0 for one in found)
    return min(1.0, 2 * (1 + beyond) / (1 + len(found)))


def _drawn(first: Sequence[Run], last: Sequence[Run], way: str) -> tuple[float, list[float]]:
    """The difference of growths, and the sorted differences in the bootstrap's draws."""
    pairs: list[tuple[GradedAnswer, GradedAnswer]] = []
    for one, other in zip(first, last, strict=True):
        short, long = (run.comparison.answers_of(way) for run in (one, other))
        pairs += [(short[key], long[key]) for key in short if key in long]

    def apart(several: Sequence[tuple[GradedAnswer, GradedAnswer]]) -> float:
        tokens = [sum(pair[at].tokens for pair in several) for at in (0, 1)]
        drafts = [sum(pair[at].rounds or 1 for pair in several) for at in (0, 1)]
        return tokens[1] / max(1, tokens[0]) - drafts[1] / drafts[0]

    draw = random.Random(analysis.RANDOM_SEED)
    return apart(pairs), sorted(apart(draw.choices(pairs, k=len(pairs))) for _ in range(analysis.DRAWS))


def slots(runs: Sequence[Run], way: str) -> list[Estimated]:
    """The share of the reference's statements that a report contains: for each quarter, then for the whole report.

    Each report counts once, with its share of right statements; the intervals come from a bootstrap over the reports.
    """
    several: list[list[float]] = []
    for run in runs:
        for said in run.slots.get(way, {}).values():
            ends = [round(at * len(said) / PARTS) for at in range(PARTS + 1)]
            quarters = [said[low:high] for low, high in pairwise(ends)]
            several.append([statistics.fmean(map(float, one)) for one in (*quarters, said) if one])
    several = [one for one in several if len(one) == PARTS + 1]
    draw = random.Random(analysis.RANDOM_SEED)
    drawn_again = [draw.choices(range(len(several)), k=len(several)) for _ in range(analysis.DRAWS if several else 0)]
    found: list[Estimated] = []
    for part in range(PARTS + 1 if several else 0):
        values = [one[part] for one in several]
        means = sorted(statistics.fmean(values[at] for at in chosen) for chosen in drawn_again)
        cut = round(analysis.DRAWS * 0.025)
        found.append(Estimated(statistics.fmean(values), means[cut], means[-1 - cut]))
    return found
