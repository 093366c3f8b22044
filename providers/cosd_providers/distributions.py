"""Comparison of the distributions of two answers, but for a server's noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cosd_providers.greedy import Position
from cosd_providers.text import whole

__all__ = ["agree", "cuts", "listed", "near", "power_of"]

# A logit of 16 bits above 16 is a multiple of one eighth. Two answers may round it differently, by 28 % at most.
_RELATIVE, _ABSOLUTE = 0.3, 2e-2
_POWER = 0.1  # noise of a power
_RATIO = 0.3  # of the logarithm of a ratio of probabilities: twice the noise
_COMPARED = 3  # tokens of each distribution


def near(one: float, other: float) -> bool:
    """True if two probabilities are equal but for a server's noise."""
    return abs(one - other) <= max(_RELATIVE * other, _ABSOLUTE)


def listed(position: Position) -> dict[tuple[bytes, bool], float]:
    """The known probabilities at a position, by the bytes of a token and a flag for an end."""
    return {
        (choice.token.data, choice.token.end): choice.token.prob
        for choice in (position.pick, *position.top)
        if choice.token.prob is not None and not choice.open
    }


def agree(one: Position, other: Position) -> bool:
    """True if two positions show the same distribution, as far as both are known, but for a server's noise.

    Args:
        one: a position; if it shows its own token alone, only this token is compared.
        other: the generated position at the same place.
    """
    here = listed(one)
    there = sorted(listed(other).items(), key=lambda item: -item[1])
    if not here or not there:
        return False
    if not one.top:
        [(key, prob)] = here.items()
        return key in dict(there) and near(dict(there)[key], prob)
    for key, prob in there[:_COMPARED]:
        if key not in here:
            if prob > _ABSOLUTE and len(here) >= _COMPARED:
                return False
        elif not near(here[key], prob):
            return False
    return there[0][0] in here


def power_of(pairs: Iterable[tuple[Position, Position]]) -> float | None:
    """The power of all ratios of probabilities, the effect of another temperature; None if the ratios are equal.

    At a single position the power drowns in noise, but noise moves each ratio in its own way.

    Args:
        pairs: positions, each with the generated position at the same place.
    """
    apart = along = 0.0
    for one, other in pairs:
        here, there = listed(one), listed(other)
        known = [key for key, prob in there.items() if prob > 0 and here.get(key, 0) > 0]
        for key in known:
            best = max(known, key=there.__getitem__)
            ratio = math.log(there[best] / there[key])
            apart += ratio**2
            along += ratio * math.log(here[best] / here[key])
    if abs(along - apart) <= max(_POWER * apart, _RATIO * math.sqrt(apart)):
        return None
    return along / apart


def cuts(positions: Sequence[Position]) -> list[tuple[int, bytes]]:
    """Positions between whole characters, from the third on, each with the text before it, a possible prompt."""
    found: list[tuple[int, bytes]] = []
    before = b""
    for at, position in enumerate(positions):
        if at > 1 and before and whole(before) == len(before) and position.pick.token.data:
            found.append((at, before))
        before += position.pick.token.data
    return found
