"""The decisions of an answer, each once, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from cosd_api.records import FusedToken, TokenDecision

__all__ = ["Judged", "Kind", "judged"]

Kind = Literal["agreed", "kept", "replaced", "outvoted"]
"""What came of a decision; the last would have replaced the draft's word, but another assistant was surer."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One decision of the answer, once: tokens that were judged together share it.

    Attributes:
        at: index of its first token.
        decision: what the assistant said.
        kind: what came of it.
    """

    at: int
    decision: TokenDecision
    kind: Kind


def judged(tokens: Iterable[FusedToken]) -> Iterator[Judged]:
    """The decisions of an answer, in its order, each once."""
    unit, seen = -1, tuple[TokenDecision, ...]()
    for at, token in enumerate(tokens):
        # A span of several tokens has its decision at each of them.
        seen = seen if token.unit == unit else ()
        yield from (Judged(at, one, _kind(token, one)) for one in token.decisions if one not in seen)
        unit, seen = token.unit, token.decisions


def _kind(token: FusedToken, decision: TokenDecision) -> Kind:
    if decision.agreed:
        return "agreed"
    if not decision.fired:
        return "kept"
    return "replaced" if token.source == decision.assistant else "outvoted"
