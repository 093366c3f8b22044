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
        first = _compared(p, p < self.alpha, "<", ">=", self.alpha, f"{self.alpha:g}")
        if not p < self.alpha:
            return first
        bound = self.beta * p
        return f"{first} and {_compared(q, q > bound, '>', '<=', bound, f'{self.beta:g} x {p:.2g}')}"


def _compared(x: float, holds: bool, sign: str, otherwise: str, bound: float, words: str) -> str:
    """`x` against a bound, with as many digits as it takes to see on which side of it `x` lies."""
    digits = next((n for n in (2, 3, 4, 6, 9) if (float(f"{x:.{n}g}") < bound) == (x < bound)), 17)
    return f"{x:.{digits}g} {sign if holds else otherwise} {words}"
