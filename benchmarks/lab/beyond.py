"""Replaced tokens of which the draft was too sure for the rule to ask about them. Examined after the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.lab.analysis import SURE
from benchmarks.lab.runs import Run

__all__ = ["Mended", "mended"]


@dataclass(frozen=True)
class Mended:
    """Counts of the mended answers, which the draft gets wrong and a way to answer gets right.

    Attributes:
        answers: number of mended answers.
        sure: number of mended answers in which a draft token with a probability of at least 0.5 was replaced.
        tokens: number of replaced draft tokens with a probability of at least 0.5.
    """

    answers: int
    sure: int
    tokens: int


def mended(runs: Sequence[Run], way: str) -> Mended:
    """Count the mended answers over all runs in which the way was compared."""
    found: list[int] = []
    for run in runs:
        alone, answers = run.right("draft"), run.comparison.answers_of(way)
        found += [
            sum((place.draft_prob or 0.0) >= SURE for place in one.replaced)
            for key, one in answers.items()
            if one.right and alone.get(key) is False
        ]
    return Mended(len(found), sum(map(bool, found)), sum(found))
