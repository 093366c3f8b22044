"""Statistics of a comparison: intervals of shares, and paired differences that are tested together.

If a contestant is no better and no worse than a model, the differences in each group of questions could equally well
have had the opposite sign. So each of many flips draws a sign for every group, which all differences share. Taking the
maximum over all differences corrects for their number (Westfall and Young, 1993, "Resampling-based multiple testing").

    T = sum x / sqrt(sum x²)        over groups; x is a group's sum of differences, right answers minus right answers
    null = max over differences of |sum s x| / sqrt(sum x²), for each flip s of the groups' signs
    p = (1 + number of flips whose null is at least |T|) / (1 + number of flips)

So an interval excludes 0 exactly if its p-value is at most 0.05, and all intervals contain the true differences in 95 %
of comparisons. SciPy has neither this maximum nor intervals of clustered shares.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from cosd_api.extend import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 0.05
"""Two-sided significance level of all tests together."""
FLIPS = 1999
"""Number of flips. Together with the observed outcomes, they make 2,000, so levels in thousandths are exact."""
_Z = 1.959963984540054  # 97.5 % of the standard normal distribution lie below
_TIE = 1e-9  # statistics that differ by less, by rounding errors, count as equal
_UNSEEN = 3.0  # rule of three: a share that was seen in none of n groups is at most 3 / n


@dataclass(frozen=True, slots=True)
class Estimated:
    """An estimate, which is NaN without data, with the ends of its interval."""

    value: float
    low: float
    high: float


def wilson(groups: Sequence[tuple[int, int]]) -> Estimated:
    """The share of successes in groups of dependent trials, with Wilson's 95 % interval (1927).

    The number of trials is divided by the design effect, which is at least 1: the variance of the share under
    clustering (the linearised variance of a ratio, as in Kish, 1965), divided by the variance for independent trials.
    If there is only one group, or if all outcomes are equal, it is the mean size of a group.

    Args:
        groups: number of successes and number of trials in each group. Without groups, the share is NaN.
    """
    right, total, count = sum(one for one, _ in groups), sum(size for _, size in groups), len(groups)
    if not total:
        return Estimated(math.nan, 0.0, 1.0)
    share, effect = right / total, total / count
    if 0 < right < total and 1 < count < total:
        apart = math.fsum((one - share * size) ** 2 for one, size in groups) * count / (count - 1)
        effect = max(1.0, apart / (total * share * (1 - share)))
    trials, z = total / effect, _Z
    middle = (share * trials + z * z / 2) / (trials + z * z)
    half = z * math.sqrt(trials) / (trials + z * z) * math.sqrt(share * (1 - share) + z * z / (4 * trials))
    # Set the ends exactly at shares of 0 and 1, despite rounding errors.
    low = 0.0 if share == 0 else min(middle - half, share)
    return Estimated(share, low, 1.0 if share == 1 else max(middle + half, share))


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Counts of right and wrong answers of two contestants to the same questions.

    Attributes:
        won: questions that only the first contestant answered right.
        lost: questions that only the second contestant answered right.
    """

    both: int
    won: int
    lost: int
    neither: int

    @property
    def total(self) -> int:
        """Number of questions."""
        return self.both + self.won + self.lost + self.neither

    @property
    def difference(self) -> float:
        """Accuracy of the first contestant minus accuracy of the second; NaN without questions."""
        return (self.won - self.lost) / self.total if self.total else math.nan


class PairedDifference(Record):
    """The difference between two contestants, on the questions that both have answered.

    Attributes:
        counts: `won` counts the questions that only this contestant answered right, `lost` the questions that only the
            other contestant answered right.
        interval: the difference in accuracy with its simultaneous 95 % interval, which holds jointly with all other
            intervals of the comparison; None if the difference is not tested.
        p: two-sided p-value, adjusted for all differences of the comparison; None if the difference is not tested.
        bounded: the difference with a wider interval that allows for failed questions. The low end assumes that all
            failed questions would have gone against this contestant, the high end that all would have gone in its
            favour. None if no question failed.
    """

    counts: PairedCounts
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
        return min((one.low for one in (self.interval, self.bounded) if one is not None), default=-math.inf)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Right and wrong answers of all contestants of a comparison.

    Attributes:
        models: names of the models alone.
        questions: keys of the test questions.
        right: by contestant and question, whether the answer is right.
        failed: by contestant, the questions that failed.
        groups: the group's key for each question; a question without an entry is its own group.
        billed: by contestant, mean number of tokens billed per answer; without contestants that ask no model.
    """

    models: Sequence[str]
    questions: Sequence[str]
    right: Mapping[str, Mapping[str, bool]]
    failed: Mapping[str, AbstractSet[str]] = field(default_factory=dict[str, AbstractSet[str]])
    groups: Mapping[str, str] = field(default_factory=dict[str, str])
    billed: Mapping[str, float] = field(default_factory=dict[str, float])

    def pairs(
        self, one: str, other: str, *, mine: bool | None = None, theirs: bool | None = None
    ) -> dict[str, tuple[bool, bool]]:
        """Outcomes of two contestants, keyed by question: true where a contestant is right.

        `mine` and `theirs` are the outcomes to assume for questions at which the first or the second contestant failed;
        None leaves these questions out.
        """
        found: dict[str, tuple[bool, bool]] = {}
        for key in self.questions:
            first, second = (
                self.right[name].get(key, instead if key in self.failed.get(name, ()) else None)
                for name, instead in ((one, mine), (other, theirs))
            )
            if first is not None and second is not None:
                found[key] = first, second
        return found

    def sums(self, pairs: Mapping[str, tuple[bool, bool]]) -> dict[str, int]:
        """Sum the differences by group of questions."""
        found: dict[str, int] = {}
        for key, (first, second) in pairs.items():
            group = self.groups.get(key, key)
            found[group] = found.get(group, 0) + first - second
        return found

    def best_model(self) -> str:
        """The model with the most right answers to the questions that all models answered; ties go to the cheaper."""
        common = [key for key in self.questions if all(key in self.right[name] for name in self.models)]

        def rank(name: str) -> tuple[int, float]:
            return sum(self.right[name][key] for key in common), -self.billed.get(name, 0.0)

        return max(self.models, key=rank)


class SignFlips:
    """Random signs of groups of questions; they depend only on the keys of the groups.

    Args:
        groups: keys of the groups; a repeated key counts once.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        import numpy as np  # noqa: PLC0415 - expensive to import

        self._at = {key: at for at, key in enumerate(dict.fromkeys(groups))}
        size = -(-FLIPS // 8)
        bits = b"".join(hashlib.shake_256(f"sign {key}".encode()).digest(size) for key in self._at)
        data = np.frombuffer(bits, dtype=np.uint8).reshape(len(self._at), size)
        self._signs = 2.0 * np.unpackbits(data, axis=1, count=FLIPS) - 1

    def statistics(self, sums: Mapping[str, int]) -> NDArray[np.float64]:
        """The statistic T of the groups' sums under each flip; 0 if no group differs."""
        import numpy as np  # noqa: PLC0415 - expensive to import

        values = np.zeros(len(self._at))
        for key, one in sums.items():
            values[self._at[key]] = one
        found: NDArray[np.float64] = values @ self._signs / (math.sqrt(squares_of(sums)) or 1.0)
        return found


def squares_of(sums: Mapping[str, int]) -> int:
    """The sum of the squares of the groups' sums."""
    return sum(one * one for one in sums.values())


def bound(maxima: Iterable[float], level: float = LEVEL) -> float:
    """The bound that a statistic must exceed for a p-value of at most `level`; infinite if there are too few flips."""
    several = sorted(maxima, reverse=True)
    rank = math.floor(level * (len(several) + 1) + _TIE)
    return float(several[rank - 1]) if 1 <= rank <= len(several) else math.inf


class Joint:
    """The differences between all pairs of models, and of each way from each model, tested together.

    Args:
        outcomes: outcomes of the comparison.
        ways: names of the contestants that are tested against every model.
        models: names of the models, or of other contestants in their place.
    """

    def __init__(self, outcomes: Outcomes, ways: Iterable[str], models: Sequence[str] | None = None) -> None:
        import numpy as np  # noqa: PLC0415 - expensive to import

        self._outcomes = outcomes
        models = outcomes.models if models is None else models
        pairs = [*combinations(models, 2), *((way, model) for way in ways for model in models)]
        self._tested = {pair: outcomes.sums(outcomes.pairs(*pair)) for pair in pairs}
        flips = SignFlips(outcomes.groups.get(key, key) for key in outcomes.questions)
        self._maxima: NDArray[Any] = np.full(FLIPS, -math.inf)
        for sums in self._tested.values():
            np.maximum(self._maxima, abs(flips.statistics(sums)), out=self._maxima)
        self._reach = bound(self._maxima)

    def difference(self, one: str, other: str) -> PairedDifference:
        """The difference between two contestants; it has no interval and no p-value if the pair is not tested."""
        outcomes = self._outcomes
        pairs = outcomes.pairs(one, other)
        sums, several = outcomes.sums(pairs), [*pairs.values()]
        kinds = ((True, True), (True, False), (False, True), (False, False))
        counts = PairedCounts(*(several.count(kind) for kind in kinds))
        if not counts.total or not {(one, other), (other, one)} & self._tested.keys():
            return PairedDifference(counts=counts)
        bounded = None
        if outcomes.failed.get(one) or outcomes.failed.get(other):
            worst, best = (outcomes.pairs(one, other, mine=good, theirs=not good) for good in (False, True))
            low, high = self._interval(worst).low, self._interval(best).high
            bounded = Estimated(counts.difference, low, high)
        statistic = abs(sum(sums.values())) / (math.sqrt(squares_of(sums)) or 1.0)
        p = (1 + int((self._maxima > statistic - _TIE).sum())) / (1 + FLIPS)
        return PairedDifference(counts=counts, interval=self._interval(pairs), p=p, bounded=bounded)

    def _interval(self, pairs: Mapping[str, tuple[bool, bool]]) -> Estimated:
        """The interval of a difference, which has at least the width that the rule of three gives."""
        sums = self._outcomes.sums(pairs)
        total, half = sum(sums.values()), max(_UNSEEN, self._reach * math.sqrt(squares_of(sums)))
        low, high = (total - half) / len(pairs), (total + half) / len(pairs)
        if abs(total) <= half * (1 + _TIE):  # equal except for rounding: the interval must contain 0
            low, high = min(low, 0.0), max(high, 0.0)
        return Estimated(total / len(pairs), max(-1.0, low), min(1.0, high))
