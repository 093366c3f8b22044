"""Comparison of probability distributions in two answers, allowing for a server's numerical noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cosd_providers.greedy import Position
from cosd_providers.text import whole

# A 16-bit logit above 16 is a multiple of 1/8, and may be rounded differently in two answers. Such a difference changes
# a probability by up to 28 %.
_RELATIVE, _ABSOLUTE = 0.3, 2e-2
_POWER = 0.1  # noise of an estimated exponent
_RATIO = 0.3  # twice the noise of the logarithm of the ratio of two probabilities
_COMPARED = 3  # number of tokens to compare in each distribution


def near(one: float, other: float) -> bool:
    """True if two probabilities are equal, allowing for a server's numerical noise."""
    return abs(one - other) <= max(_RELATIVE * other, _ABSOLUTE)


def listed(position: Position) -> dict[tuple[bytes, bool], float]:
    """The known probabilities at a position, keyed by the token's bytes and by whether it is an end of sequence."""
    return {
        (choice.token.data, choice.token.end): choice.token.prob
        for choice in (position.pick, *position.top)
        if choice.token.prob is not None and not choice.open
    }


def agree(one: Position, other: Position) -> bool:
    """True if two positions show the same distribution, as far as it is known, allowing for numerical noise.

    Args:
        one: a position. If it lists no tokens besides its own, only its own token is compared.
        other: the position at the same place in a generated answer.
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
    """Estimate the exponent that turns ratios of generated probabilities into ratios of given probabilities.

    The ratios are taken between tokens at the same position. If the server used different temperatures for generated
    and given tokens, the exponent is the same at every position. A single position is too noisy to show it, so the
    estimate uses all positions.
    Each given position is paired with the generated position at the same place. The result is None if the exponent
    cannot be distinguished from 1.
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
    """Find the index of each position, from the third on, at which a new character begins, and the text before it."""
    found: list[tuple[int, bytes]] = []
    before = b""
    for at, position in enumerate(positions):
        if at > 1 and before and whole(before) == len(before) and position.pick.token.data:
            found.append((at, before))
        before += position.pick.token.data
    return found
