"""Rule-based verification: equations (4) to (6) of the CoSD paper."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RuleVerifier(BaseModel):
    """Replaces an unsure draft token by a surer one of the assistant: `p < alpha and q > beta * p`.

    Equations (5) and (6), both strict; equation (4), that the two differ, is what brings a verifier in at all.

    Attributes:
        alpha: the draft is unsure below this probability. 0 never replaces.
        beta: the assistant must be surer than `beta` times the draft. `math.inf` never replaces.

    Raises:
        pydantic.ValidationError: `alpha` or `beta` is negative or not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    kind: Literal["rule"] = "rule"
    alpha: float = Field(default=0.5, ge=0)
    beta: float = Field(default=0.5, ge=0)

    def fires(self, p: float, q: float) -> bool:
        """Equations (5) and (6)."""
        return p < self.alpha and q > self.beta * p

    def contestable(self, p: float) -> bool:
        """Exact: no assistant is surer than 1, so beyond `beta * p >= 1` nothing can fire."""
        return p < self.alpha and self.beta * p < 1

    def words(self, p: float, q: float) -> str:
        """The two comparisons as they came out."""
        first = f"{p:.2g} {'<' if p < self.alpha else '>='} {self.alpha:g}"
        if not p < self.alpha:
            return first
        return f"{first} and {q:.2g} {'>' if q > self.beta * p else '<='} {self.beta:g} x {p:.2g}"
