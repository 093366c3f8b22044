"""Rule-based verification: equations (4) to (6) of the CoSD paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_serializer


class RuleVerifier(BaseModel):
    """Replaces an unsure draft token by a more confident token of the assistant: `p < alpha and q > beta * p`.

    Equations (5) and (6), both strict. Equation (4), that the two differ, holds whenever a verifier decides.

    The default is not the paper's 0.5 and 0.5 (`paper`), by which a guess of the assistant replaces a better one of the
    draft: on a real pair that is behind the better model alone, and 0.9 and 1 are ahead of it (docs/evidence.md).

    Attributes:
        alpha: the draft is unsure below this probability. 0 never replaces.
        beta: the assistant's probability must exceed `beta` times the draft's. `math.inf` never replaces.

    Raises:
        pydantic.ValidationError: `alpha` or `beta` is negative or not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    kind: Literal["rule"] = "rule"
    alpha: float = Field(default=0.9, ge=0, description="the draft is unsure below this probability")
    beta: float = Field(default=1.0, ge=0, description="an assistant's probability must exceed this times the draft's")

    @classmethod
    def paper(cls) -> Self:
        """The rule of the paper's experiments (section 4.1): alpha = 0.5 and beta = 0.5."""
        return cls(alpha=0.5, beta=0.5)

    @field_serializer("alpha", "beta", when_used="json")
    def _without_bare_infinity(self, bound: float) -> float | str:
        return bound if math.isfinite(bound) else "Infinity"

    @property
    def condition(self) -> str:
        """The condition in words."""
        return f"replaces where p < {self.alpha:g} and q > {self.beta:g} × p"

    def replaces(self, p: float, q: float) -> bool:
        """Equations (5) and (6)."""
        return p < self.alpha and q > self.beta * p

    def contestable(self, p: float) -> bool:
        """Exact: no probability exceeds 1, so no decision fires if `beta * p >= 1`."""
        return p < self.alpha and self.beta * p < 1

    def explain(self, p: float, q: float) -> str:
        """The two comparisons with their outcomes."""
        unsure, surer = p < self.alpha, q > self.beta * p
        alpha, beta = exactly(self.alpha), exactly(self.beta)
        mine, theirs = shortened([p, q], lambda s: (s[0] < self.alpha, s[1] > self.beta * s[0]) == (unsure, surer))
        if not unsure:
            return f"{mine} >= {alpha}"
        return f"{mine} < {alpha} and {theirs} {'>' if surer else '<='} {beta} x {mine}"


def exactly(bound: float) -> str:
    """A bound with all its digits."""
    return repr(bound).removesuffix(".0")


def shortened(probs: Sequence[float], holds: Callable[[list[float]], bool]) -> list[str]:
    """Probabilities in as few digits as still satisfy `holds`; only a probability of 1 is shown as 1."""
    for digits in (2, 3, 4, 6, 9):
        short = [f"{prob:.{digits}g}" for prob in probs]
        shown = list(map(float, short))
        if holds(shown) and [prob == 1 for prob in shown] == [prob == 1 for prob in probs]:
            return short
    return [repr(prob) for prob in probs]
