"""The interface of verifiers: three required methods, and optional attributes and methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from pydantic import BaseModel

from cosd_api.verification.decision_place import Place

__all__ = [
    "Needs",
    "Trained",
    "Verifier",
    "coin_of",
    "condition_of",
    "decides_by_place",
    "needs_of",
    "tie_of",
    "verifier_at",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The data that a verifier needs from the models.

    Attributes:
        q: whether the verifier uses the assistant's probability. If False, assistants that report no probabilities are
            accepted, and `q` is then NaN.
        alternatives: the number of alternatives that an assistant must list at each place. If this number is not 0,
            `Place.draft_q` is known. Only for `unit="token"`.
        draft_alternatives: the number of alternatives that the draft must list with each of its tokens. Only for
            `unit="token"`.
        draft_states: the number of values in the hidden state that the draft must report with each of its tokens; 0 if
            no hidden state is needed. Only for `unit="token"`.
        window: the smallest number of places to ask about in one question while the draft is being written.
        ties: whether the draft's and the assistant's tokens count as equal if the assistant finds them equally
            probable. Set this to False if every differing token should be replaced.
        contested: the share of the draft's tokens about which assistants are asked, for estimates of the cost; None if
            unknown.
    """

    q: bool = True
    alternatives: int = 0
    draft_alternatives: int = 0
    draft_states: int = 0
    window: int = 1
    ties: bool = True
    contested: float | None = None

    @property
    def looks_at(self) -> str | None:
        """The data about a draft token that the verifier needs in addition to `p` and `q`; None if it needs no more.

        This is a phrase for error messages, such as "the draft's hidden state before".
        """
        if self.alternatives:
            return "the assistant's probability of"
        if self.draft_alternatives:
            return "the draft's list beside"
        return "the draft's hidden state before" if self.draft_states else None


@runtime_checkable
class Verifier(Protocol):
    """Decides each disagreement between the draft and an assistant.

    Any object with these three methods is a verifier. The methods must be pure functions. `p` is the draft's
    probability of its own tokens, and `q` is the assistant's probability of its own tokens, both in [0, 1].

    A verifier that needs data other than `p` and `q`, or does not need both, has an attribute `needs` of type `Needs`.

    A verifier whose decision depends on more than `p` and `q` has a method `at(place)`, which returns the verifier that
    decides at this `Place`. If the returned verifier has an attribute `coin`, this number is recorded with the
    decision.

    The verifiers in `KnownVerifier` may have more attributes and methods:

    - `condition` describes in words when a token is replaced (`"replaces where p < 0.5"`).
    - `basis` says which data a verifier with `at(place)` uses, as a phrase that completes "it ..." in reports.
    - `compared = True` makes `compare` include the verifier along with the methods.
    - `load` and `save` are described in `Trained`.
    """

    def replaces(self, p: float, q: float) -> bool:
        """Decide whether the assistant's word replaces the draft's word."""
        ...

    def contestable(self, p: float) -> bool:
        """Return True if `replaces` is True for some `q` in [0, 1]; otherwise the assistant is not asked."""
        ...

    def explain(self, p: float, q: float) -> str:
        """Describe the decision in words, for example `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`."""
        ...


@runtime_checkable
class ByPlace(Protocol):
    """A verifier whose decision depends on the place in the answer."""

    def at(self, place: Place) -> Verifier:
        """Return the verifier for one place."""
        ...


@runtime_checkable
class Trained(Protocol):
    """A trained verifier, which is stored in a separate file. Settings files contain the path of that file."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a verifier from its file."""
        ...

    def save(self, path: str | Path) -> None:
        """Write the verifier to a file."""
        ...


def needs_of(verifier: Verifier) -> Needs:
    """Return the needs that a verifier declares; by default, it needs only `p` and `q`."""
    needs: Needs = getattr(verifier, "needs", Needs())
    return needs


def decides_by_place(verifier: Verifier) -> bool:
    """Test whether the verifier's decisions depend on the place in the answer."""
    return isinstance(verifier, ByPlace)


def verifier_at(verifier: Verifier, place: Place) -> Verifier:
    """Return the verifier that decides at a place: `verifier` itself if its decisions do not depend on the place."""
    return verifier.at(place) if isinstance(verifier, ByPlace) else verifier


def coin_of(verifier: Verifier) -> float | None:
    """Return the number by which the verifier for one place decides; None if it does not use such a number."""
    coin: float | None = getattr(verifier, "coin", None)
    return coin


def condition_of(verifier: BaseModel) -> str:
    """Describe in words when a verifier replaces a token: by its `condition`, or else by its kind and settings."""
    condition: str | None = getattr(verifier, "condition", None)
    if condition is not None:
        return condition
    settings = ", ".join(f"{name}={value}" for name, value in verifier if name != "kind")
    name = getattr(verifier, "kind", type(verifier).__name__)
    return f"the verifier {name} ({settings})" if settings else f"the verifier {name}"


def tie_of(verifier: Verifier, tie: float) -> float:
    """Return `tie`, or 0 if the verifier allows no ties: it replaces every differing token, or its needs say so."""
    greedy = not decides_by_place(verifier) and verifier.replaces(1.0, 0.0)
    return tie if needs_of(verifier).ties and not greedy else 0.0
