"""Means of the models' probabilities, between bounds: shared by the methods that average. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.methods.lists import ROUNDING, Key, key_of
from cosd_providers.contract import Token

SURE = 0.5
"""A mean above this is the largest."""


@dataclass(frozen=True, slots=True)
class MeanBounds:
    """Bounds of the probability of a token, or of its mean."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MeanChoice:
    """A token that is written.

    Attributes:
        token: the token.
        model: the first model that would write it; if none would, the model that finds it most probable.
        segment: the record of it.
        proved: whether its mean is proved to be the largest.
    """

    token: Token
    model: int
    segment: DecidedSegment
    proved: bool = True

    @classmethod
    def of(
        cls, token: Token, model: int, contenders: Sequence[Contender], reason: str, *, at: int = 0, proved: bool = True
    ) -> MeanChoice:
        """The choice of a token, which is contender `at`."""
        return cls(replace(token, alternatives=()), model, DecidedSegment(tuple(contenders), at, reason), proved)


def mean_of(several: Iterable[tuple[float, MeanBounds]]) -> MeanBounds:
    """The weighted mean of some bounds, each given with its weight."""
    bounds = [*several]
    return MeanBounds(sum(weight * one.low for weight, one in bounds), sum(weight * one.high for weight, one in bounds))


def largest(means: Mapping[Key, MeanBounds]) -> Key:
    """The token with the largest lower bound, of equals the first listed."""
    best, *_ = means
    for key, mean in means.items():
        if mean.low > means[best].low * (1 + ROUNDING):
            best = key
    return best


def is_proved(best: Key, means: Mapping[Key, MeanBounds]) -> bool:
    """Test whether no other token can have a larger mean, or come first with an equal mean."""
    least, before = means[best].low, True
    for key, mean in means.items():
        if key == best:
            before = False
        elif mean.high > least * (1 - ROUNDING if before else 1 + ROUNDING):
            return False
    return True


def reason_for(best: Key, means: Mapping[Key, MeanBounds]) -> str:
    """The means of the best token and of the second, in words."""
    second = max((mean.high for key, mean in means.items() if key != best), default=0.0)
    return f"largest mean probability: {means[best].low:.2g} against {second:.2g} at most"


def contender(key: Key, models: Iterable[int], probs: Iterable[float | None], mean: MeanBounds) -> Contender:
    """The record of a token that `models` would write: 1 / probability by model, and of the mean."""
    scores = tuple(None if prob is None else inverse(prob) for prob in probs)
    exact = mean.high - mean.low <= ROUNDING * mean.high
    return Contender(tuple(model - 1 for model in models), *key, scores, inverse(mean.low) if exact else None)


def token_of(key: Key, listed: Iterable[Token | None]) -> Token:
    """The first token with these bytes, among several tokens and their alternatives."""
    return next(
        one for token in listed if token is not None for one in (token, *token.alternatives) if key_of(one) == key
    )


def inverse(prob: float) -> float:
    """1 / probability, which is the perplexity of a single token."""
    return 1 / prob if prob else math.inf
