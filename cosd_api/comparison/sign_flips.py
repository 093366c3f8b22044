"""A joint permutation test of several paired differences, by random sign flips of whole groups of questions.

If a contestant is no better and no worse than a model, the differences in each group of questions could equally well
have had the opposite sign. So the test compares the sum of the differences with the sums under random signs. All
contrasts share the sign of a group, so the flips preserve the correlation between contrasts. Taking the maximum over
all contrasts corrects for their number (Westfall and Young, 1993, "Resampling-based multiple testing"). Duplicate
contrasts do not weaken the test, and distinct contrasts weaken it hardly more than Holm's procedure would.

    T = sum x / sqrt(sum x²)        over groups; x is a group's sum of differences, right answers minus right answers
    null = max over contrasts of sum s x / sqrt(sum x²), for each flip s of the groups' signs
    p = (1 + number of flips whose null is at least T) / (1 + number of flips)

The signs of a group depend only on its key. So a run with more questions extends the flips of the earlier run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from cosd_api.extend import check_between

FLIPS = 1999
"""Number of flips. Together with the observed outcomes, they make 2,000, so levels in thousandths are exact."""
_TIE = 1e-9
"""Tolerance for rounding errors: statistics that differ by less count as equal."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The differences of one pair of contestants, summed by group.

    Attributes:
        total: sum of all differences.
        squares: sum of the squares of the groups' sums.
    """

    total: int
    squares: int
    _lost: int  # bit mask of the groups with a negative sum
    _planes: tuple[tuple[int, int], ...]  # for each binary digit: mask and number of the groups whose sum has it

    @classmethod
    def of(cls, sums: Sequence[int]) -> Self:
        """Make a contrast from the groups' sums; the first group is the lowest bit."""
        lost = sum(1 << at for at, one in enumerate(sums) if one < 0)
        planes: list[tuple[int, int]] = []
        for digit in range(max((abs(one) for one in sums), default=0).bit_length()):
            mask = sum(1 << at for at, one in enumerate(sums) if abs(one) >> digit & 1)
            planes.append((mask, mask.bit_count()))
        return cls(sum(sums), sum(one * one for one in sums), lost, tuple(planes))

    @property
    def statistic(self) -> float:
        """The statistic T; 0 if no group differs."""
        return self.total / math.sqrt(self.squares) if self.squares else 0.0

    def flipped(self, flips: Sequence[int]) -> list[float]:
        """T under each flip; a flip is an integer with one bit per group, which is 1 if the group keeps its sign."""
        lost, root = self._lost, math.sqrt(self.squares)
        if not self._planes:
            return [0.0] * len(flips)
        (mask, size), *more = self._planes
        sums = [2 * ((flip ^ lost) & mask).bit_count() - size for flip in flips]
        for digit, (mask, size) in enumerate(more, 1):
            for at, flip in enumerate(flips):
                sums[at] += (2 * ((flip ^ lost) & mask).bit_count() - size) << digit
        return [one / root for one in sums]


class SignFlips:
    """Random signs of groups of questions.

    Args:
        groups: keys of the groups; a repeated key counts once.
        count: number of flips.

    Attributes:
        groups: the distinct keys, in the order given.
        flips: one integer for each flip, with one bit for each group; the lowest bit belongs to the first group.
    """

    def __init__(self, groups: Iterable[str], count: int = FLIPS) -> None:
        self.groups = tuple(dict.fromkeys(groups))
        self._at = {key: at for at, key in enumerate(self.groups)}
        signs = [_bits(key, count) for key in reversed(self.groups)]
        self.flips = [int("".join(bits), 2) for bits in zip(*signs, strict=True)] if signs else [0] * count

    def contrast(self, differences: Iterable[tuple[str, int]]) -> Contrast:
        """Sum differences by group; each difference belongs to a question, and is given with the key of its group.

        Raises:
            KeyError: a key belongs to no known group.
        """
        sums = [0] * len(self.groups)
        for key, one in differences:
            sums[self._at[key]] += one
        return Contrast.of(sums)

    def maxima(self, contrasts: Iterable[Contrast], *, two_sided: bool = False) -> list[float]:
        """For each flip, compute the largest T of all contrasts, or the largest |T| if `two_sided`.

        Without contrasts, all maxima are minus infinity.
        """
        best = [-math.inf] * len(self.flips)
        for one in contrasts:
            found = one.flipped(self.flips)
            best = [*map(max, best, map(abs, found) if two_sided else found)]
        return best


def adjusted_p(statistic: float, maxima: Sequence[float]) -> float:
    """The p-value of a statistic, adjusted for the number of contrasts that the maxima cover."""
    return (1 + sum(one > statistic - _TIE for one in maxima)) / (1 + len(maxima))


def bound(maxima: Sequence[float], level: float) -> float:
    """Compute the bound that a statistic must exceed (see `exceeds`) for a p-value of at most `level`.

    It follows that the intervals `(sum x ± bound * sqrt(sum x²)) / n` are simultaneous, where `n` is the number of
    questions. An interval excludes 0 exactly if the p-value is at most the level. The bound is infinite if there are
    too few flips for the level.

    Raises:
        SettingError: the level is not between 0 and 1.
    """
    check_between("level", level, 0, 1)
    rank = math.floor(level * (len(maxima) + 1) + _TIE)
    return sorted(maxima, reverse=True)[rank - 1] if 1 <= rank <= len(maxima) else math.inf


def exceeds(statistic: float, limit: float) -> bool:
    """Test whether a statistic is above a bound; a tie does not count."""
    return statistic > limit + _TIE


def _bits(key: str, count: int) -> str:
    """Draw the signs of one group, as a string with one binary digit for each flip."""
    size = -(-count // 8)
    digest = hashlib.shake_256(f"sign {key}".encode()).digest(size)
    return format(int.from_bytes(digest, "big"), f"0{8 * size}b")[:count]
