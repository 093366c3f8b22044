"""Paired differences between contestants, with simultaneous intervals; the best way to fuse and the frontier.

One set of sign flips (see `sign_flips`) yields all p-values and intervals of a comparison, which are derived from the
maximum of |T| over all differences. Therefore, an interval excludes 0 exactly if its p-value is at most 0.05, and all
intervals contain the true differences in 95 % of comparisons. Testing the same difference twice does not widen the
intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations

from cosd_api.comparison.sign_flips import Contrast, SignFlips, adjusted_p, bound
from cosd_api.comparison.statistics import Estimated, PairedCounts
from cosd_api.extend import Record

_TIE = 1e-9
_UNSEEN = 3.0  # rule of three: a share that was seen in none of n groups is at most 3 / n
LEVEL = 0.05
"""Two-sided significance level of all tests together."""


class PairedDifference(Record):
    """The difference between two contestants, on the questions that both have answered.

    Attributes:
        counts: `won` counts the questions that only this contestant answered right, `lost` the questions that only the
            other contestant answered right.
        groups: number of groups of questions in which this contestant has more right answers than the other, followed
            by the number of groups in which it has fewer. None if each question is a group of its own.
        interval: the difference in accuracy with its simultaneous 95 % interval, which holds jointly with all other
            intervals of the comparison; None if the difference is not tested.
        p: two-sided p-value, adjusted for all differences of the comparison. It is at most 0.05 exactly if the interval
            excludes 0. None if the difference is not tested.
        bounded: the difference with a wider interval that allows for failed questions. The low end assumes that all
            failed questions would have gone against this contestant, the high end that all would have gone in its
            favour. None if no question failed.
    """

    counts: PairedCounts
    groups: tuple[int, int] | None = None
    interval: Estimated | None = None
    p: float | None = None
    bounded: Estimated | None = None

    @property
    def value(self) -> float:
        """The accuracy of this contestant minus that of the other; NaN if there is no question that both answered."""
        return self.counts.difference

    @property
    def low(self) -> float:
        """Low end of the interval if all failures count against this contestant; minus infinity without an interval."""
        ends = [one.low for one in (self.interval, self.bounded) if one is not None]
        return min(ends, default=-math.inf)


class ThirdModel(Record):
    """The best way to fuse all three models, compared with the best way to fuse two of them on the same questions.

    The best way to fuse two is chosen on the same questions, so its measured accuracy is slightly too high. The
    interval of the difference allows for the choice among the ways to fuse three, because it is derived from a maximum
    over all these ways.

    Attributes:
        three: name of the way to fuse all three.
        two: name of the way to fuse two.
        difference: accuracy of `three` minus accuracy of `two`.
        billed: mean number of tokens billed per answer of `three`, and of `two`.
        money: mean price per answer of `three`, and of `two`; None if no prices are given.
    """

    three: str
    two: str
    difference: PairedDifference
    billed: tuple[float, float]
    money: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class GradedOutcomes:
    """Right and wrong answers of all contestants of a comparison.

    Attributes:
        models: names of the models alone.
        questions: keys of the test questions.
        right: for each contestant, whether its answer is right, keyed by question.
        failed: for each contestant, the questions that failed.
        groups: the group's key for each question; a question without an entry is its own group.
        billed: mean number of tokens billed per answer, for each contestant; contestants that ask no model are absent.
    """

    models: Sequence[str]
    questions: Sequence[str]
    right: Mapping[str, Mapping[str, bool]]
    failed: Mapping[str, AbstractSet[str]] = field(default_factory=dict[str, AbstractSet[str]])
    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    billed: Mapping[str, float] = field(default_factory=dict[str, float])

    def group(self, question: str) -> str:
        """The key of the question's group."""
        return self.groups.get(question, question)

    @property
    def grouped(self) -> bool:
        """True if at least two questions share a group."""
        return len({*map(self.group, self.questions)}) < len(self.questions)

    def counts(self, one: str, other: str) -> PairedCounts:
        """Count the paired outcomes of two contestants on the questions that both have answered."""
        mine, theirs = self.right[one], self.right[other]
        common = [key for key in mine if key in theirs]
        return PairedCounts.of([mine[key] for key in common], [theirs[key] for key in common])

    def apart(
        self, one: str, other: str, *, mine: bool | None = None, theirs: bool | None = None
    ) -> list[tuple[str, int]]:
        """List the difference at each question, with the key of the question's group.

        Args:
            one: the first contestant.
            other: the second contestant.
            mine: outcome to assume for a question at which the first contestant failed; None leaves the question out.
            theirs: outcome to assume for a question at which the second contestant failed; None leaves the question
                out.
        """
        found: list[tuple[str, int]] = []
        for key in self.questions:
            first, second = (
                self.right[name].get(key, instead if key in self.failed.get(name, ()) else None)
                for name, instead in ((one, mine), (other, theirs))
            )
            if first is not None and second is not None:
                found.append((self.group(key), int(first) - int(second)))
        return found


class Joint:
    """All differences of a comparison, tested together.

    Args:
        outcomes: outcomes of the comparison.
        ways: names of the contestants that are tested against every model.
        more: further pairs of contestants to test against each other.
    """

    def __init__(self, outcomes: GradedOutcomes, ways: Iterable[str], more: Iterable[tuple[str, str]] = ()) -> None:
        self._outcomes = outcomes
        self._flips = SignFlips(map(outcomes.group, outcomes.questions))
        models = outcomes.models
        pairs = [*combinations(models, 2), *((way, model) for way in ways for model in models), *more]
        self._contrasts = {pair: self._contrast(*pair) for pair in pairs}
        self._maxima = self._flips.maxima(self._contrasts.values(), two_sided=True)
        self._reach = bound(self._maxima, LEVEL)

    def _contrast(self, one: str, other: str, **instead: bool) -> Contrast:
        return self._flips.contrast(self._outcomes.apart(one, other, **instead))

    def difference(self, one: str, other: str) -> PairedDifference:
        """The difference between two contestants; it has no interval and no p-value if the pair is not tested."""
        counts, found = self._outcomes.counts(one, other), self._contrasts.get((one, other))
        sign, groups = 1, self._by_group(one, other)
        if found is None:
            sign, found = -1, self._contrasts.get((other, one))
        if found is None or not counts.total:
            return PairedDifference(counts=counts, groups=groups)
        failed = {*self._outcomes.failed.get(one, ()), *self._outcomes.failed.get(other, ())}
        bounded = None
        if failed:
            ends = [self._interval(one, other, mine=good, theirs=not good) for good in (False, True)]
            bounded = Estimated(counts.difference, ends[0].low, ends[1].high)
        return PairedDifference(
            counts=counts,
            groups=groups,
            interval=self._around(sign * found.total, found.squares, counts.total),
            p=adjusted_p(abs(found.statistic), self._maxima),
            bounded=bounded,
        )

    def _by_group(self, one: str, other: str) -> tuple[int, int] | None:
        if not self._outcomes.grouped:
            return None
        sums: dict[str, int] = {}
        for group, apart in self._outcomes.apart(one, other):
            sums[group] = sums.get(group, 0) + apart
        return sum(apart > 0 for apart in sums.values()), sum(apart < 0 for apart in sums.values())

    def _interval(self, one: str, other: str, **instead: bool) -> Estimated:
        """The interval under the assumption that failed questions have the outcomes in `instead`."""
        found = self._contrast(one, other, **instead)
        return self._around(found.total, found.squares, len(self._outcomes.apart(one, other, **instead)))

    def _around(self, total: int, squares: int, questions: int) -> Estimated:
        """The interval of a difference, which has at least the width that the rule of three gives."""
        half = max(_UNSEEN, self._reach * math.sqrt(squares))
        low, high = (total - half) / questions, (total + half) / questions
        if abs(total) <= half * (1 + _TIE):  # equal except for rounding: the interval must contain 0
            low, high = min(low, 0.0), max(high, 0.0)
        return Estimated(total / questions, max(-1.0, low), min(1.0, high))


def best_model(outcomes: GradedOutcomes) -> str:
    """The model with the most right answers to the questions that all models answered; ties go to the cheaper model."""
    first, *others = (outcomes.right[name] for name in outcomes.models)
    common = [key for key in first if all(key in one for one in others)]

    def rank(name: str) -> tuple[int, float]:
        return sum(outcomes.right[name][key] for key in common), -outcomes.billed.get(name, 0.0)

    return max(outcomes.models, key=rank)


def best_way(outcomes: GradedOutcomes, ways: Iterable[str]) -> str | None:
    """The way to fuse with the most right answers; ties go to the cheaper, then to the first. None without answers."""

    def rank(name: str) -> tuple[int, float]:
        return sum(outcomes.right[name].values()), -outcomes.billed[name]

    return max((name for name in ways if outcomes.billed.get(name)), key=rank, default=None)


def leading(outcomes: GradedOutcomes, names: Iterable[str]) -> set[str]:
    """The contestants that are more than one standard error ahead of every cheaper contestant.

    The standard error is that of the paired difference, clustered by group. A failed question counts as wrong. Of
    several contestants with the same bill and the same answers, only the first is included.
    """

    def rank(name: str) -> tuple[float, int]:
        return outcomes.billed[name], -sum(outcomes.right[name].values())

    several = sorted((name for name in names if name in outcomes.billed), key=rank)
    return {name for at, name in enumerate(several) if all(_ahead(outcomes, name, one) for one in several[:at])}


def _ahead(outcomes: GradedOutcomes, one: str, other: str) -> bool:
    """Test whether a contestant is more than one standard error ahead of another."""
    sums: dict[str, int] = {}
    for group, apart in outcomes.apart(one, other, mine=False, theirs=False):
        sums[group] = sums.get(group, 0) + apart
    total, squares, count = sum(sums.values()), sum(value * value for value in sums.values()), len(sums)
    return count > 0 and total > math.sqrt(max(0.0, squares - total * total / count))


def alike(texts: Mapping[str, Sequence[str] | None], billed: Mapping[str, float]) -> dict[str, str]:
    """Find ways to fuse that wrote the same texts as a cheaper way; map each to the cheapest. Ties go to the first.

    Args:
        texts: for each way to fuse, its answers to all questions; None if an answer is missing.
        billed: mean number of tokens billed per answer, for each way to fuse.
    """
    found: dict[tuple[str, ...], list[str]] = {}
    for name, several in texts.items():
        if several:
            found.setdefault(tuple(several), []).append(name)

    def bill(name: str) -> float:
        return billed.get(name, 0.0)

    return {
        name: first for names in found.values() if (first := min(names, key=bill)) for name in names if name != first
    }
