"""Means of the models' probabilities, with bounds, for the methods that average. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.methods.lists import ROUNDING, Key, key_of
from cosd_providers.contract import Token

SURE = 0.5
"""A token whose mean exceeds this number must have the largest mean, because all means sum to at most 1."""


@dataclass(frozen=True, slots=True)
class MeanBounds:
    """A lower and an upper bound on a token's probability, or on its mean probability."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MeanChoice:
    """The choice of the token that is written at a place.

    Attributes:
        token: the token.
        model: the first model that would write the token; if none would, the model that finds it most probable.
        segment: the record of the choice, for the result.
        proved: whether the token's mean is proved to be the largest.
    """

    token: Token
    model: int
    segment: DecidedSegment
    proved: bool = True

    @classmethod
    def of(
        cls, token: Token, model: int, contenders: Sequence[Contender], reason: str, *, at: int = 0, proved: bool = True
    ) -> MeanChoice:
        """Create the choice of a token from all contenders; the token is the contender with the index `at`."""
        return cls(replace(token, alternatives=()), model, DecidedSegment(tuple(contenders), at, reason), proved)


def mean_of(several: Iterable[tuple[float, MeanBounds]]) -> MeanBounds:
    """Compute the weighted mean of several bounds from pairs of weight and bounds."""
    bounds = [*several]
    return MeanBounds(sum(weight * one.low for weight, one in bounds), sum(weight * one.high for weight, one in bounds))


def largest(means: Mapping[Key, MeanBounds]) -> Key:
    """Return the token with the largest lower bound; if several are equal, the first one listed."""
    best, *_ = means
    for key, mean in means.items():
        if mean.low > means[best].low * (1 + ROUNDING):
            best = key
    return best


def is_proved(best: Key, means: Mapping[Key, MeanBounds]) -> bool:
    """Test whether `best` must win: no other token can have a larger mean, or an equal mean and an earlier position."""
    least, before = means[best].low, True
    for key, mean in means.items():
        if key == best:
            before = False
        elif mean.high > least * (1 - ROUNDING if before else 1 + ROUNDING):
            return False
    return True


def reason_for(best: Key, means: Mapping[Key, MeanBounds]) -> str:
    """Describe in words the means of the best token and the second-best token."""
    second = max((mean.high for key, mean in means.items() if key != best), default=0.0)
    return f"largest mean probability: {means[best].low:.2g} against {second:.2g} at most"


def contender(key: Key, models: Iterable[int], probs: Iterable[float | None], mean: MeanBounds) -> Contender:
    """Return the record of a token that `models` would write, with 1 / its probability per model and 1 / its mean."""
    scores = tuple(None if prob is None else inverse(prob) for prob in probs)
    exact = mean.high - mean.low <= ROUNDING * mean.high
    return Contender(tuple(model - 1 for model in models), *key, scores, inverse(mean.low) if exact else None)


def token_of(key: Key, listed: Iterable[Token | None]) -> Token:
    """Find the first token with this key among the given tokens and their alternatives."""
    return next(
        one for token in listed if token is not None for one in (token, *token.alternatives) if key_of(one) == key
    )


def inverse(prob: float) -> float:
    """Return 1 / `prob`, which is the perplexity of a single token; infinity if `prob` is 0."""
    return 1 / prob if prob else math.inf
