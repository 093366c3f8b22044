"""Verifiers, which decide from two probabilities between the draft's word and an assistant's."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from cosd_api.verification.agreement import AgreementVerifier
from cosd_api.verification.cascades import ChowVerifier, DiffVerifier
from cosd_api.verification.rule import RuleVerifier
from cosd_api.verification.tree import TreeVerifier

__all__ = ["AgreementVerifier", "ChowVerifier", "DiffVerifier", "RuleVerifier", "TreeVerifier", "Verifier", "needs_q"]


@runtime_checkable
class Verifier(Protocol):
    """Decides one disagreement. Any object with these three methods will do; they must be pure functions.

    `p` is the draft's probability of its own tokens, `q` the assistant's of its own, both in [0, 1].

    A verifier that ignores `q` may say so by a fourth member, `needs_q = False`: then it is also asked where an
    assistant does not report its probability, and `q` is NaN.
    """

    def replaces(self, p: float, q: float) -> bool:
        """True if the assistant's word replaces the draft's."""
        ...

    def contestable(self, p: float) -> bool:
        """True if some `q` in [0, 1] would replace. Where it is False the assistant is never asked."""
        ...

    def explain(self, p: float, q: float) -> str:
        """The decision in words, e.g. `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`."""
        ...


def needs_q(verifier: Verifier) -> bool:
    """True if the verifier looks at the assistant's probability."""
    return bool(getattr(verifier, "needs_q", True))
