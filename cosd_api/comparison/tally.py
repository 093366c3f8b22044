"""Progress of a run: what each contestant has answered so far."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """The progress of one contestant.

    Attributes:
        name: its name.
        questions: that it is to answer, for development too.
        answered: number of graded answers.
        right: number of right ones.
        failed: number of failed ones.
        billed: tokens that its answers have billed.
    """

    name: str
    questions: int
    answered: int = 0
    right: int = 0
    failed: int = 0
    billed: int = 0
