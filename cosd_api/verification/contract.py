"""The contract of a verifier: three methods, and optional statements beside them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from pydantic import BaseModel

from cosd_api.verification.place import Place

__all__ = [
    "Needs",
    "Trained",
    "Verifier",
    "WithOutline",
    "coin_of",
    "condition_of",
    "decides_by_place",
    "needs_of",
    "tie_of",
    "verifier_at",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The data that a verifier needs of the models.

    Attributes:
        q: whether it uses the assistant's probability. If not, it also decides if an assistant does not report one,
            with NaN for `q`.
        alternatives: other tokens that an assistant has to list at each place, which then has `draft_q`
            (`unit="token"` only).
        draft_alternatives: other tokens that the draft has to list with each of its own (`unit="token"` only).
        draft_states: numbers of the hidden state that the draft has to report with each of its tokens; 0 for none
            (`unit="token"` only).
        window: least number of places in a question while the draft is being written.
        ties: whether an assistant's two equally probable choices count as agreement. False if every differing token is
            replaced.
        contested: the share of the draft's tokens about which assistants are asked, for estimates; None if unknown.
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
        """The data at each of the draft's tokens that it uses beside p and q, for messages; None if there are none."""
        if self.alternatives:
            return "the assistant's probability of"
        if self.draft_alternatives:
            return "the draft's list beside"
        return "the draft's hidden state before" if self.draft_states else None


@runtime_checkable
class Verifier(Protocol):
    """Decides one disagreement. Any object with these three methods will do; they must be pure functions.

    `p` is the draft's probability of its own tokens, `q` the assistant's probability of its own tokens, both in [0, 1].

    A verifier that needs more or less data has an attribute `needs`, a `Needs`.

    A verifier that decides by more than `p` and `q` has a method `at(place)`, which gives the verifier for one `Place`.
    That verifier then decides, and its attribute `coin`, if it has one, is recorded with the decision.

    One of `KnownVerifier` may state more: a property `condition`, its condition in words (`"replaces where p < 0.5"`),
    a method `outline()`, which gives it in lines, and `basis`, which completes "it ..." for reports if it decides by
    the place; `compared = True`, so that `compare` takes it beside the methods; `load` and `save`, see `Trained`.
    """

    def replaces(self, p: float, q: float) -> bool:
        """True if the assistant's word replaces the draft's."""
        ...

    def contestable(self, p: float) -> bool:
        """True if some `q` in [0, 1] would replace. If it is False the assistant is never asked."""
        ...

    def explain(self, p: float, q: float) -> str:
        """The decision in words, e.g. `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`."""
        ...


@runtime_checkable
class WithNeeds(Protocol):
    """A verifier that states its needs."""

    @property
    def needs(self) -> Needs:
        """The facts about it."""
        ...


@runtime_checkable
class ByPlace(Protocol):
    """A verifier that decides by the place."""

    def at(self, place: Place) -> Verifier:
        """The verifier for one place."""
        ...


@runtime_checkable
class WithCoin(Protocol):
    """A verifier for one place that decides by a number of its own."""

    @property
    def coin(self) -> float | None:
        """The number, as a decision records it."""
        ...


@runtime_checkable
class WithCondition(Protocol):
    """A verifier that states its condition in words."""

    @property
    def condition(self) -> str:
        """The condition, e.g. `"replaces where p < 0.5"`."""
        ...


@runtime_checkable
class WithOutline(Protocol):
    """A verifier that is shown in several lines."""

    def outline(self) -> str:
        """The lines."""
        ...


@runtime_checkable
class Trained(Protocol):
    """A verifier that was trained: a file of its own holds it, and settings files name that file."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read it from its file."""
        ...

    def save(self, path: str | Path) -> None:
        """Write its file."""
        ...


_FORMER = {
    "needs_q": "q",
    "alternatives": "alternatives",
    "draft_alternatives": "draft_alternatives",
    "draft_states": "draft_states",
    "window": "window",
}
"""Attributes of a verifier before there was `Needs`, with their present names."""


def needs_of(verifier: Verifier) -> Needs:
    """The needs that a verifier states; by default only `p` and `q`."""
    if isinstance(verifier, WithNeeds):
        return verifier.needs
    former = {new: getattr(verifier, old) for old, new in _FORMER.items() if hasattr(verifier, old)}
    if former:
        given = ", ".join(f"{name}={value!r}" for name, value in former.items())
        words = f"{type(verifier).__name__} states its needs by attributes of its own, which end with cosd-api 0.2"
        warnings.warn(f"{words}: give it needs = cosd_api.Needs({given})", DeprecationWarning, stacklevel=2)
    return Needs(**former)


def decides_by_place(verifier: Verifier) -> bool:
    """True if the verifier uses the place of a decision."""
    return isinstance(verifier, ByPlace)


def verifier_at(verifier: Verifier, place: Place) -> Verifier:
    """The verifier for one place: itself, unless it decides by the place."""
    return verifier.at(place) if isinstance(verifier, ByPlace) else verifier


def coin_of(verifier: Verifier) -> float | None:
    """The number by which the verifier for one place decides; None if it has none."""
    return verifier.coin if isinstance(verifier, WithCoin) else None


def condition_of(verifier: BaseModel) -> str:
    """The condition of a verifier that records can hold, in words: its own, or its kind and its settings."""
    if isinstance(verifier, WithCondition):
        return verifier.condition
    settings = ", ".join(f"{name}={value}" for name, value in verifier if name != "kind")
    name = getattr(verifier, "kind", type(verifier).__name__)
    return f"the verifier {name} ({settings})" if settings else f"the verifier {name}"


def tie_of(verifier: Verifier, tie: float) -> float:
    """The tie with which a verifier decides: 0 if it replaces all that differs, since the text is the assistant's."""
    greedy = not decides_by_place(verifier) and verifier.replaces(1.0, 0.0)
    return tie if needs_of(verifier).ties and not greedy else 0.0
