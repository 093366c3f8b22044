"""Verification by agreement alone, for assistants that report no probabilities."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.verification.contract import Needs
from cosd_api.verification.rule import exactly, shortened


class AgreementVerifier(BaseModel):
    """Replaces an unsure draft token by whatever the assistant says: `p < alpha`, where the two differ.

    Equations (4) and (5) without (6), for an assistant that reports no probability to compare. It also takes the word
    of an assistant that is only guessing, so prefer `RuleVerifier` wherever it can be used.

    Attributes:
        alpha: the draft is unsure below this probability. 0 never replaces.

    Raises:
        pydantic.ValidationError: `alpha` is negative or not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    needs: ClassVar[Needs] = Needs(q=False)

    kind: Literal["agreement"] = "agreement"
    alpha: float = Field(
        default=0.5, ge=0, allow_inf_nan=False, description="the draft is unsure below this probability"
    )

    @property
    def condition(self) -> str:
        """The condition in words."""
        return f"replaces where p < {self.alpha:g}, whatever q is"

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - it asks only whether the two differ
        """Equation (5)."""
        return p < self.alpha

    def contestable(self, p: float) -> bool:
        """The same: the assistant's probability changes nothing."""
        return p < self.alpha

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """The comparison as it came out, e.g. `"0.31 < 0.5"`."""
        unsure = p < self.alpha
        (mine,) = shortened([p], lambda short: (short[0] < self.alpha) == unsure)
        return f"{mine} {'<' if unsure else '>='} {exactly(self.alpha)}"
