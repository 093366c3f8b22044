"""Verifiers, which decide from two probabilities between the draft's word and an assistant's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from cosd_api.verification.agreement import AgreementVerifier
from cosd_api.verification.cascades import ChowVerifier, DiffVerifier
from cosd_api.verification.co_llm import CoLLMVerifier
from cosd_api.verification.control import RandomVerifier
from cosd_api.verification.deferral import DeferralVerifier
from cosd_api.verification.match import MatchVerifier
from cosd_api.verification.place import Place, digest_of
from cosd_api.verification.rule import RuleVerifier
from cosd_api.verification.surprise import SurpriseVerifier
from cosd_api.verification.tree import TreeVerifier

__all__ = [
    "AgreementVerifier",
    "ChowVerifier",
    "CoLLMVerifier",
    "DeferralVerifier",
    "DiffVerifier",
    "MatchVerifier",
    "Place",
    "RandomVerifier",
    "RuleVerifier",
    "SurpriseVerifier",
    "TreeVerifier",
    "Verifier",
    "alternatives_of",
    "decides_by_place",
    "digest_of",
    "draft_alternatives_of",
    "draft_states_of",
    "looks_at",
    "needs_q",
    "tie_of",
    "verifier_at",
]


@runtime_checkable
class Verifier(Protocol):
    """Decides one disagreement. Any object with these three methods will do; they must be pure functions.

    `p` is the draft's probability of its own tokens, `q` the assistant's of its own, both in [0, 1].

    A verifier that ignores `q` may say so by a fourth member, `needs_q = False`: then it is also asked where an
    assistant does not report its probability, and `q` is NaN.

    A verifier that decides by more than `p` and `q` has a method `at(place)`, which gives the verifier for one `Place`.
    Then that one is asked, and its attribute `coin`, if it has one, is recorded with the decision. With an attribute
    `alternatives`, assistants list as many other tokens at each place, and the place has `draft_q` (`unit="token"`
    only). With `window`, this number of places at least is asked about together while the draft is being written. With
    `draft_alternatives`, the draft lists this number of other tokens with each of its own, and the place has `token`.
    With `draft_states`, the width of the draft model's hidden states, that token has its `state`.
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


def alternatives_of(verifier: Verifier) -> int:
    """The number of other tokens that the verifier wants an assistant to list at each place."""
    return int(getattr(verifier, "alternatives", 0))


def draft_alternatives_of(verifier: Verifier) -> int:
    """The number of other tokens that the verifier wants the draft to list with each of its own."""
    return int(getattr(verifier, "draft_alternatives", 0))


def draft_states_of(verifier: Verifier) -> int:
    """The width of the hidden states that the verifier wants with each of the draft's tokens; 0 for none."""
    return int(getattr(verifier, "draft_states", 0))


def looks_at(verifier: Verifier) -> str | None:
    """Things at each of the draft's tokens that the verifier looks at beside p and q, for messages; None if nothing."""
    if alternatives_of(verifier):
        return "the assistant's probability of"
    if draft_alternatives_of(verifier):
        return "the draft's list beside"
    return "the draft's hidden state before" if draft_states_of(verifier) else None


def decides_by_place(verifier: Verifier) -> bool:
    """True if the verifier looks at the place of a decision."""
    return hasattr(verifier, "at")


def tie_of(verifier: Verifier, tie: float) -> float:
    """The tie that a verifier decides with: one that replaces whatever differs has none, as all is the assistant's.

    A trained gate is one, wherever it is open.
    """
    gates = isinstance(verifier, DeferralVerifier | CoLLMVerifier)
    return 0.0 if gates or (not decides_by_place(verifier) and verifier.replaces(1.0, 0.0)) else tie


def verifier_at(verifier: Verifier, place: Place) -> Verifier:
    """The verifier for one place: itself, unless it looks at the place."""
    at: Callable[[Place], Verifier] | None = getattr(verifier, "at", None)
    return verifier if at is None else at(place)
