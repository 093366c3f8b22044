"""How long a server takes for a round trip, for a token that it reads and one that it writes: learned from answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["KEPT", "TICK", "Costs", "Work"]

KEPT = 0.97
"""Weight of the earlier answers, for each one that follows."""

TICK = 1e-6
"""Seconds: what takes less was not measured."""

Work = tuple[float, float, float]
"""Round trips, tokens read, and tokens written one after another."""

_USUAL: Work = (0.02, 0.0002, 0.01)
"""Seconds for one of each: their proportions are taken where nothing else is known."""

_TRUST = 0.05  # of the usual proportions, beside what the answers tell
_SWEEPS = 20


class Costs:
    """The model: seconds for a round trip, a token read, and a token written; by least squares of relative errors."""

    def __init__(self) -> None:
        self._squares = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3
        self._logs = self._count = 0.0  # of how many times the usual seconds were taken
        self._rates: Work = _USUAL
        self._solved = True

    def seconds(self, work: Work) -> float:
        """How long so much work takes."""
        if not self._solved:
            self._rates, self._solved = self._solution(), True
        return max(_product(self._rates, work), TICK)

    def add(self, work: Work, seconds: float) -> None:
        """Takes into account how long so much work took."""
        row = [amount / seconds for amount in work]
        self._logs = KEPT * self._logs + math.log(seconds / _product(_USUAL, work))
        self._count = KEPT * self._count + 1
        for i in range(3):
            self._sums[i] = KEPT * self._sums[i] + row[i]
            for j in range(3):
                self._squares[i][j] = KEPT * self._squares[i][j] + row[i] * row[j]
        self._solved = False  # until somebody asks

    def _solution(self) -> Work:
        """The rates that fit best. None is negative, and what the answers do not tell is in the usual proportions."""
        squares, scale = self._squares, math.exp(self._logs / self._count)
        usual = [scale * rate for rate in _USUAL]
        found = [*self._rates]  # which are near
        for _ in range(_SWEEPS):
            for i in range(3):
                others = _product(squares[i], found) - squares[i][i] * found[i]
                told = (self._sums[i] - others + _TRUST * squares[i][i] * usual[i]) / (1 + _TRUST)
                found[i] = max(told / squares[i][i], 0.0) if squares[i][i] else usual[i]
        return (found[0], found[1], found[2])


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
