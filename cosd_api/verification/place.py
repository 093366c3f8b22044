"""The place of a decision, for verifiers that use more than the two probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, NoReturn

from pydantic import BaseModel

from cosd_providers.contract import Token


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an answer where a verifier decides.

    A decision that is judged again from its record has only `coin` and `draft_q`.

    Attributes:
        prompt: a digest of the draft model's prompt: BLAKE2b of 16 bytes.
        start: byte offset in the answer of the first draft token that is judged.
        coin: the number by which the verifier decides there: a drawn number, or a probability of its own.
        draft_q: the assistant's probability of the draft's text there, or its upper bound; None before the assistant
            was asked, and unless the verifier needs `alternatives`.
        token: the first of the draft's judged tokens, with the draft's list if the verifier needs `draft_alternatives`.
    """

    prompt: bytes | None = None
    start: int | None = None
    coin: float | None = None
    draft_q: float | None = None
    token: Token | None = None


class PlaceVerifier(BaseModel):
    """A verifier that decides at a place only: `at(place)` is the verifier that decides there.

    Attributes:
        basis: the data that it uses, for messages.
    """

    basis: ClassVar[str]

    def replaces(self, p: float, q: float) -> NoReturn:  # noqa: ARG002 - one of the three methods
        """Undecided without a place.

        Raises:
            TypeError: always; see `at`.
        """
        raise TypeError(f"{type(self).__name__} {self.basis}: use at(place).replaces(p, q)")

    def explain(self, p: float, q: float) -> NoReturn:  # noqa: ARG002 - one of the three methods
        """Undecided without a place.

        Raises:
            TypeError: always; see `at`.
        """
        raise TypeError(f"{type(self).__name__} {self.basis}: use at(place).explain(p, q)")


def digest_of(prompt: str) -> bytes:
    """The digest of a place's prompt."""
    return blake2b(prompt.encode(), digest_size=16).digest()
