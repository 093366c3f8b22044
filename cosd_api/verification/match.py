"""Verification by equality alone: every differing token is replaced."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from cosd_api.verification.verifier import Needs


class MatchVerifier(BaseModel):
    """Replaces every draft token that differs from the assistant's, so that the answer is the assistant's greedy text.

    This is the test of greedy speculative decoding. It uses no probabilities.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    needs: ClassVar[Needs] = Needs(q=False, ties=False)

    compared: ClassVar[bool] = True

    kind: Literal["match"] = "match"

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return "replaces wherever the two differ"

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - the probabilities do not matter
        """Return True, because a verifier is called only if the tokens of draft and assistant differ."""
        return True

    def contestable(self, p: float) -> bool:  # noqa: ARG002
        """Return True, because every token has to be compared."""
        return True

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """Return `"they differ"`, which is the only reason."""
        return "they differ"
