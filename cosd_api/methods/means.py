"""Means of the models' probabilities, between bounds: what methods that average share. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

SURE = 0.5
"""A mean above this is the largest."""


@dataclass(frozen=True, slots=True)
class MeanBounds:
    """Bounds of the mean probability of a token."""

    low: float
    high: float


def inverse(prob: float) -> float:
    """1 / probability, which is the perplexity of a single token."""
    return 1 / prob if prob else math.inf
