"""The place of a decision, for verifiers that need more data than `p` and `q`."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict

from cosd_providers.contract import Token


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an answer where a verifier decides.

    If the decision is recomputed from a record, only `coin` and `draft_q` are known.

    Attributes:
        prompt: a digest of the draft model's prompt (BLAKE2b, 16 bytes).
        start: the byte offset of the first judged draft token in the answer.
        coin: the number by which the verifier decides at the place: a random number, or a probability that the verifier
            computes.
        draft_q: the assistant's probability of the draft's text at the place, or an upper bound on it. It is None
            before the assistant is asked, and if the verifier does not need `alternatives`.
        token: the first judged draft token. It includes the draft's alternatives if the verifier needs
            `draft_alternatives`.
    """

    prompt: bytes | None = None
    start: int | None = None
    coin: float | None = None
    draft_q: float | None = None
    token: Token | None = None


class PlaceVerifier(BaseModel):
    """Base class of verifiers that cannot decide without a place; `at(place)` returns the verifier for a place.

    Attributes:
        basis: a verb phrase for messages that says which data the verifier uses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    basis: ClassVar[str]

    def replaces(self, p: float, q: float) -> NoReturn:  # noqa: ARG002 - a verifier must have this method
        """Refuse to decide without a place.

        Raises:
            TypeError: always; call `at(place).replaces(p, q)` instead.
        """
        raise TypeError(f"{type(self).__name__} {self.basis}: use at(place).replaces(p, q)")

    def explain(self, p: float, q: float) -> NoReturn:  # noqa: ARG002 - a verifier must have this method
        """Refuse to explain a decision without a place.

        Raises:
            TypeError: always; call `at(place).explain(p, q)` instead.
        """
        raise TypeError(f"{type(self).__name__} {self.basis}: use at(place).explain(p, q)")


def digest_of(prompt: str) -> bytes:
    """Compute the digest of a prompt, as in `Place.prompt`."""
    return blake2b(prompt.encode(), digest_size=16).digest()
