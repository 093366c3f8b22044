"""Statistics of a comparison, as pure functions: intervals, paired differences, tests and calibration.

Each function follows the source that its docstring names, and needs only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from statistics import NormalDist
from typing import Self

from cosd_api import RuleVerifier, SettingError
from cosd_api.extend import check_count

_ALPHA = RuleVerifier().alpha


@dataclass(frozen=True, slots=True)
class Estimated:
    """An estimate with its interval.

    Attributes:
        value: the estimate; NaN without data.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    value: float
    low: float
    high: float


# Shares.


def wilson(right: int, total: int, level: float = 0.95) -> Estimated:
    """The share `right / total` with Wilson's score interval, which stays within [0, 1] and works for small samples.

    Wilson (1927), "Probable inference, the law of succession, and statistical inference": the interval contains every
    share `p` with `|right / total - p| <= z sqrt(p (1 - p) / total)`. Equation 4 of Brown, Cai and DasGupta (2001) is
    the solution for `p`.

    Args:
        right: number of successes.
        total: number of trials; if it is 0, the interval is [0, 1].
        level: approximate probability, between 0 and 1, that the interval covers the true share.

    Raises:
        SettingError: `right` is not between 0 and `total`, or the level is invalid.
    """
    z = _z(level)
    if not 0 <= check_count("right", right, least=0) <= check_count("total", total, least=0):
        raise SettingError(f"right must be between 0 and total, not {right} of {total}")
    if not total:
        return Estimated(math.nan, 0.0, 1.0)
    return _score(right / total, total, z)


def wilson_by_groups(groups: Sequence[tuple[int, int]], level: float = 0.95) -> Estimated:
    """The share of successes in groups of dependent trials, with Wilson's interval for the effective number of trials.

    The effective number is the number of trials divided by the design effect. The design effect, which is at least 1,
    is the variance of the share under clustering (the linearised variance of a ratio, as in Kish, 1965), divided by the
    variance for independent trials. If there is only one group, or if all outcomes are equal, the design effect is the
    mean size of a group. If each group has one trial, the result equals that of `wilson`.

    Args:
        groups: number of successes and number of trials in each group; every group has at least one trial.
        level: as for `wilson`.

    Raises:
        SettingError: see `wilson`.
    """
    right, total = sum(one for one, _ in groups), sum(size for _, size in groups)
    if len(groups) == total:
        return wilson(right, total, level)
    share, count = right / total, len(groups)
    effect = total / count
    if 0 < right < total and count > 1:
        apart = math.fsum((one - share * size) ** 2 for one, size in groups) * count / (count - 1)
        effect = max(1.0, apart / (total * share * (1 - share)))
    return _score(share, total / effect, _z(level))


def _score(share: float, total: float, z: float) -> Estimated:
    middle = (share * total + z * z / 2) / (total + z * z)
    half = z * math.sqrt(total) / (total + z * z) * math.sqrt(share * (1 - share) + z * z / (4 * total))
    # Set the ends exactly at shares of 0 and 1, despite rounding errors.
    low = 0.0 if share == 0 else min(middle - half, share)
    high = 1.0 if share == 1 else max(middle + half, share)
    return Estimated(share, low, high)


# Two contestants on the same questions.


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Counts of right and wrong answers of two contestants to the same questions.

    Attributes:
        both: questions that both contestants answered right.
        won: questions that only the first contestant answered right.
        lost: questions that only the second contestant answered right.
        neither: questions that both contestants answered wrong.
    """

    both: int
    won: int
    lost: int
    neither: int

    def __post_init__(self) -> None:
        for name in ("both", "won", "lost", "neither"):
            check_count(name, getattr(self, name), least=0)

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> Self:
        """Make the counts from two lists of outcomes of the same questions.

        Raises:
            SettingError: the lists differ in length.
        """
        if len(first) != len(second):
            raise SettingError(f"outcomes are compared in pairs, but there are {len(first)} and {len(second)}")
        pairs = [(bool(mine), bool(theirs)) for mine, theirs in zip(first, second, strict=True)]
        return cls(*(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))))

    @property
    def total(self) -> int:
        """Number of questions."""
        return self.both + self.won + self.lost + self.neither

    @property
    def difference(self) -> float:
        """Accuracy of the first contestant minus accuracy of the second; NaN without questions."""
        return (self.won - self.lost) / self.total if self.total else math.nan


# Calibration.


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Answers with similar probabilities.

    Attributes:
        low: lower bound, inclusive.
        high: upper bound, exclusive except in the last bin.
        answers: number of answers.
        confidence: mean probability of the answers; None without answers.
        accuracy: share of right answers; None without answers.
    """

    low: float
    high: float
    answers: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """Agreement between a model's probabilities and its accuracy.

    Attributes:
        error: the expected calibration error, in [0, 1]; NaN without answers.
        bins: bins of equal width, from 0 to 1.
        answers: number of answers.
        confidence: mean probability; NaN without answers.
        accuracy: share of right answers; NaN without answers.
        alpha: minimum probability of a confident answer.
        wrong: number of wrong answers.
        confident_wrong: number of wrong answers with a probability of at least `alpha`. A rule that asks an assistant
            only below `alpha` never asks about these answers.
    """

    error: float
    bins: tuple[CalibrationBin, ...]
    answers: int
    confidence: float
    accuracy: float
    alpha: float
    wrong: int
    confident_wrong: int


def calibration(answers: Iterable[tuple[float, bool]], *, bins: int = 10, alpha: float = _ALPHA) -> CalibrationCurve:
    """Compute a model's expected calibration error, with its bins, and the number of confidently wrong answers.

    Guo et al. (2017), "On calibration of modern neural networks", equation 3: the error is the distance between a bin's
    accuracy and its mean probability, averaged over all answers. Bins have equal width; a probability on a boundary
    belongs to the upper bin.

    Args:
        answers: for each answer, its probability and whether it is right.
        bins: number of bins.
        alpha: minimum probability of a confident answer; by default, the alpha of the default rule.

    Raises:
        SettingError: a probability is not in [0, 1], or `bins` is not a positive whole number.
    """
    check_count("bins", bins)
    found: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    given = [(probability, bool(right)) for probability, right in answers]
    for probability, right in given:
        if not 0 <= probability <= 1:
            raise SettingError(f"probabilities must be between 0 and 1, not {probability!r}")
        found[_bin(probability, bins)].append((probability, right))
    total = len(given)
    wrong = [probability for probability, right in given if not right]
    made = tuple(_filled(at, bins, inside) for at, inside in enumerate(found))
    apart = math.fsum(
        one.answers * abs(one.accuracy - one.confidence)
        for one in made
        if one.accuracy is not None and one.confidence is not None
    )
    return CalibrationCurve(
        error=apart / total if total else math.nan,
        bins=made,
        answers=total,
        confidence=math.fsum(probability for probability, _ in given) / total if total else math.nan,
        accuracy=(total - len(wrong)) / total if total else math.nan,
        alpha=alpha,
        wrong=len(wrong),
        confident_wrong=sum(probability >= alpha for probability in wrong),
    )


def _bin(probability: float, bins: int) -> int:
    """The index of the bin with `low <= probability < high`, where the bounds are floating-point numbers."""
    at = min(int(probability * bins), bins - 1)
    if at + 1 < bins and probability >= (at + 1) / bins:
        return at + 1
    return at - 1 if probability < at / bins else at


def _filled(at: int, bins: int, inside: Sequence[tuple[float, bool]]) -> CalibrationBin:
    count = len(inside)
    confidence = math.fsum(probability for probability, _ in inside) / count if count else None
    accuracy = sum(right for _, right in inside) / count if count else None
    return CalibrationBin(at / bins, (at + 1) / bins, count, confidence, accuracy)


# Means, such as of latencies.


def mean(values: Sequence[float], level: float = 0.95) -> Estimated:
    """The mean of values, such as seconds or tokens per question, with Student's t interval.

    Student (1908): `mean +- t s / sqrt(n)`, with the quantile `t` of n - 1 degrees of freedom and the sample's standard
    deviation `s`. If the values are few and strongly skewed, such as durations with a rare outlier, the interval covers
    the true mean less often than `level` says.

    Args:
        values: finite numbers. With a single number, the interval is unbounded; without numbers, the mean is NaN.
        level: approximate probability that the interval covers the true mean.

    Raises:
        SettingError: the level is invalid, or a value is not finite.
    """
    _z(level)
    count = len(values)
    if not all(map(math.isfinite, values)):
        raise SettingError("a mean is taken of finite numbers")
    if not count:
        return Estimated(math.nan, -math.inf, math.inf)
    middle = math.fsum(values) / count
    if count == 1:
        return Estimated(middle, -math.inf, math.inf)
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (count - 1))
    half = _t(level, count - 1) * spread / math.sqrt(count)
    return Estimated(middle, middle - half, middle + half)


@lru_cache(256)
def _t(level: float, freedom: int) -> float:
    """The bound `t` with `P(|T| <= t) = level` for Student's t distribution, found by bisection."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < level:
        low, high = high, 2 * high
    for _ in repeat(None, 60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """`P(|T| <= t)` for Student's t, by the finite series 26.7.3 and 26.7.4 of Abramowitz and Stegun (1964)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for at in range(1 + odd, freedom, 2):
        total += term
        term *= at / (at + 1) * cosine * cosine
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _z(level: float) -> float:
    """The bound `z` with `P(|Z| <= z) = level` for the standard normal distribution."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise SettingError(f"level must be a number between 0 and 1, such as 0.95, not {level!r}")
    return NormalDist().inv_cdf((1 + level) / 2)


# Quality and cost.


def frontier(points: Sequence[tuple[float, float]]) -> list[int]:
    """Find the points `(cost, quality)` that no other point beats; return their indexes in ascending order of cost.

    A point beats another if it costs no more, has at least the same quality, and is cheaper or better. Equal points are
    all kept.
    """
    kept: list[int] = []
    best: tuple[float, float] | None = None
    for at in sorted(range(len(points)), key=lambda at: (points[at][0], -points[at][1])):
        if best is None or points[at][1] > best[1] or points[at] == best:
            kept.append(at)
            best = points[at]
    return kept
