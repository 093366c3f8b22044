"""The decisions that were made for an answer, each listed once, and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from cosd_api.types import FusedToken, TokenDecision

Outcome = Literal["agreed", "tied", "kept", "replaced", "outvoted"]
"""Outcome of a decision. "tied": the draft's token is kept, because the assistant finds both tokens equally probable.
"outvoted": the decision was to replace, but another assistant was more confident.
"""


@dataclass(frozen=True, slots=True)
class JudgedPlace:
    """One decision about a token, or about several tokens that were judged together.

    Attributes:
        at: index of the first token.
        decision: the record of the decision.
        outcome: the outcome of the decision.
    """

    at: int
    decision: TokenDecision
    outcome: Outcome


def judged(tokens: Iterable[FusedToken]) -> Iterator[JudgedPlace]:
    """Yield the decisions of an answer in order, each once."""
    unit, seen = -1, tuple[TokenDecision, ...]()
    for at, token in enumerate(tokens):
        # A decision about several tokens is recorded at each token, but must be yielded only once.
        seen = seen if token.unit == unit else ()
        yield from (JudgedPlace(at, one, _outcome(token, one)) for one in token.decisions if one not in seen)
        unit, seen = token.unit, token.decisions


def _outcome(token: FusedToken, decision: TokenDecision) -> Outcome:
    if decision.agreed:
        return "tied" if decision.tied else "agreed"
    if not decision.fired:
        return "kept"
    return "replaced" if token.source == decision.assistant else "outvoted"
