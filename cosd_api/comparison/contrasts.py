"""Differences of contestants on the same questions, with intervals that hold together, and what follows. Pure.

One set of sign flips gives every p-value and every interval of a comparison (see `sign_flips`): the maximum of |T| over
all differences, two-sided. So an interval leaves out 0 exactly where the p-value beside it is at most 5 %, and all of
the intervals hold at the same time in 95 % of comparisons. Differences that are copies of each other cost nothing.
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
LEVEL = 0.05
"""Level of all differences together, two-sided."""


class PairedDifference(Record):
    """A contestant beside another one, on the questions that both have answered.

    Attributes:
        counts: `won` are the questions that this contestant alone has right, `lost` those that the other one alone has.
        groups: numbers of groups of questions in which this contestant has more right answers than the other, and
            fewer; None where each question is a group of its own.
        interval: of the difference in accuracy, with its 95 % interval, which holds together with all others of the
            comparison; None where it is not tested.
        p: two-sided, adjusted for all differences of the comparison: at most 0.05 exactly where the interval leaves out
            0. None where it is not tested.
        bounded: the same difference, where one of the two failed at questions: its low end if all of these had gone
            against this contestant, its high end if all had gone for it. None without such questions.
    """

    counts: PairedCounts
    groups: tuple[int, int] | None = None
    interval: Estimated | None = None
    p: float | None = None
    bounded: Estimated | None = None

    @property
    def value(self) -> float:
        """The accuracy of the contestant less that of the other; NaN without questions."""
        return self.counts.difference

    @property
    def low(self) -> float:
        """The low end, at its worst where questions failed; minus infinity where it is not tested."""
        ends = [one.low for one in (self.interval, self.bounded) if one is not None]
        return min(ends, default=-math.inf)


class ThirdModel(Record):
    """The best way to fuse all three models beside the best way to fuse two of them, on the same questions.

    The best way of two is chosen by these questions, which is in its favour. All ways of three are in the maximum by
    which the interval is made, so the choice among them costs nothing.

    Attributes:
        three: name of the way to fuse all of them.
        two: name of the way to fuse two.
        difference: of the first to the second.
        billed: mean number of tokens billed for an answer of each, in this order.
        money: mean price of an answer of each; None without prices.
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
        right: outcomes by contestant, then by question.
        failed: questions that failed, by contestant.
        groups: of each question, the key of its group; that of a question that is not there is its own.
        billed: mean number of tokens of an answer, by contestant; without those that ask nobody.
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
        """True if questions share a group."""
        return len({*map(self.group, self.questions)}) < len(self.questions)

    def counts(self, one: str, other: str) -> PairedCounts:
        """One contestant beside another, on what both have answered."""
        mine, theirs = self.right[one], self.right[other]
        common = [key for key in mine if key in theirs]
        return PairedCounts.of([mine[key] for key in common], [theirs[key] for key in common])

    def apart(
        self, one: str, other: str, *, mine: bool | None = None, theirs: bool | None = None
    ) -> list[tuple[str, int]]:
        """The differences by question, each with its group's key.

        Args:
            one: the first contestant.
            other: the second.
            mine: what a question counts at which the first failed; None leaves it out.
            theirs: likewise of the second.
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
        outcomes: of the comparison.
        ways: names of those that are held against every model.
        more: further pairs of names that are held against each other.
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
        """The difference of two names that are held against each other, in either order; of others, untested."""
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
        """The interval with outcomes in the place of those that failed."""
        found = self._contrast(one, other, **instead)
        return self._around(found.total, found.squares, len(self._outcomes.apart(one, other, **instead)))

    def _around(self, total: int, squares: int, questions: int) -> Estimated:
        """The interval of a difference; one at which no group differs is as wide as if one did."""
        half = self._reach * math.sqrt(max(squares, 1))
        low, high = (total - half) / questions, (total + half) / questions
        if abs(total) <= half * (1 + _TIE):  # a tie, whatever was rounded
            low, high = min(low, 0.0), max(high, 0.0)
        return Estimated(total / questions, max(-1.0, low), min(1.0, high))


def best_model(outcomes: GradedOutcomes) -> str:
    """The model with the most right answers to the questions that all have answered; of equals the cheaper one."""
    first, *others = (outcomes.right[name] for name in outcomes.models)
    common = [key for key in first if all(key in one for one in others)]

    def rank(name: str) -> tuple[int, float]:
        return sum(outcomes.right[name][key] for key in common), -outcomes.billed.get(name, 0.0)

    return max(outcomes.models, key=rank)  # the first of equals


def best_way(outcomes: GradedOutcomes, ways: Iterable[str]) -> str | None:
    """The way with the most right answers, of those that have answered; of equals the cheaper one, then the first."""

    def rank(name: str) -> tuple[int, float]:
        return sum(outcomes.right[name].values()), -outcomes.billed[name]

    return max((name for name in ways if outcomes.billed.get(name)), key=rank, default=None)


def leading(outcomes: GradedOutcomes, names: Iterable[str]) -> set[str]:
    """Those of these contestants that no cheaper one equals within one standard error.

    The standard error is that of the difference, by groups; a question that failed counts as wrong. Of contestants with
    the same bill and the same answers the first is meant.
    """

    def rank(name: str) -> tuple[float, int]:
        return outcomes.billed[name], -sum(outcomes.right[name].values())

    several = sorted((name for name in names if name in outcomes.billed), key=rank)
    return {name for at, name in enumerate(several) if all(_ahead(outcomes, name, one) for one in several[:at])}


def _ahead(outcomes: GradedOutcomes, one: str, other: str) -> bool:
    """Test whether a contestant is ahead of another one by more than a standard error."""
    sums: dict[str, int] = {}
    for group, apart in outcomes.apart(one, other, mine=False, theirs=False):
        sums[group] = sums.get(group, 0) + apart
    total, squares, count = sum(sums.values()), sum(value * value for value in sums.values()), len(sums)
    return count > 0 and total > math.sqrt(max(0.0, squares - total * total / count))


def alike(texts: Mapping[str, Sequence[str] | None], billed: Mapping[str, float]) -> dict[str, str]:
    """Ways that wrote the same texts as a cheaper one, each with the name of the cheapest; of equals the first.

    Args:
        texts: of each way, those to all questions; None where one is missing.
        billed: mean number of tokens of an answer.
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
