"""Verification without the assistant's probability, for assistants that report none."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.verification.rule import exactly, shortened
from cosd_api.verification.verifier import Needs

__all__ = ["AgreementVerifier"]


class AgreementVerifier(BaseModel):
    """Replaces a draft token with the assistant's token if the two differ and the draft is unsure (`p < alpha`).

    These are equations (4) and (5) of the CoSD paper without (6), for an assistant that reports no probabilities. The
    assistant's token replaces the draft's even if the assistant is only guessing, so prefer `RuleVerifier` if possible.

    With `alpha = 1 - tau`, this is Chow's rule for cascades with the deferral cost `tau`.

    Attributes:
        alpha: the draft is unsure if the probability of its token is below this number; at least 0. With 0, no token is
            ever replaced.

    Raises:
        pydantic.ValidationError: `alpha` is negative or not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    needs: ClassVar[Needs] = Needs(q=False)
    compared: ClassVar[bool] = True

    kind: Literal["agreement"] = "agreement"
    alpha: float = Field(
        default=0.5, ge=0, allow_inf_nan=False, description="the draft is unsure below this probability"
    )

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return f"replaces where p < {self.alpha:g}, whatever q is"

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - the assistant's probability does not matter
        """Return True if `p < alpha` (equation 5)."""
        return p < self.alpha

    def contestable(self, p: float) -> bool:
        """Return True if `p < alpha`, as `replaces` does, because the assistant's probability does not matter."""
        return p < self.alpha

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """Describe the comparison and its outcome, for example `"0.31 < 0.5"`."""
        unsure = p < self.alpha
        (mine,) = shortened([p], lambda short: (short[0] < self.alpha) == unsure)
        return f"{mine} {'<' if unsure else '>='} {exactly(self.alpha)}"
