"""Rule-based verification by equations (4) to (6) of the CoSD paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_serializer


class RuleVerifier(BaseModel):
    """Replaces an unsure draft token with a more confident token of the assistant: `p < alpha and q > beta * p`.

    These are equations (5) and (6) of the CoSD paper; both inequalities are strict. Equation (4) requires that the
    tokens of draft and assistant differ. It always holds, because a verifier is called only if they differ.

    The defaults differ from the paper's thresholds, alpha = 0.5 and beta = 0.5 (see `paper`), because the paper's
    thresholds let a guess of the assistant replace a better guess of the draft. On a real pair of models, the paper's
    thresholds did worse than the better model alone, and the defaults did better (docs/evidence.md).

    Attributes:
        alpha: the draft is unsure if the probability of its token is below this number; at least 0. With 0, no token is
            ever replaced.
        beta: the assistant's probability must exceed `beta` times the draft's; at least 0. With `math.inf`, no token is
            ever replaced.

    Raises:
        pydantic.ValidationError: `alpha` or `beta` is negative or not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    kind: Literal["rule"] = "rule"
    alpha: float = Field(default=0.9, ge=0, description="the draft is unsure below this probability")
    beta: float = Field(default=1.0, ge=0, description="an assistant's probability must exceed this times the draft's")

    @classmethod
    def paper(cls) -> Self:
        """Create the rule with the thresholds of the paper's experiments (section 4.1): alpha = 0.5 and beta = 0.5."""
        return cls(alpha=0.5, beta=0.5)

    @field_serializer("alpha", "beta", when_used="json")
    def _without_bare_infinity(self, bound: float) -> float | str:
        return bound if math.isfinite(bound) else "Infinity"

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return f"replaces where p < {self.alpha:g} and q > {self.beta:g} × p"

    def replaces(self, p: float, q: float) -> bool:
        """Return True if `p < alpha and q > beta * p` (equations 5 and 6)."""
        return p < self.alpha and q > self.beta * p

    def contestable(self, p: float) -> bool:
        """Return True if `p < alpha and beta * p < 1`; otherwise no `q` in [0, 1] fulfils the condition."""
        return p < self.alpha and self.beta * p < 1

    def explain(self, p: float, q: float) -> str:
        """Describe the comparisons and their outcomes, for example `"0.31 < 0.9 and 0.72 > 1 x 0.31"`."""
        unsure, surer = p < self.alpha, q > self.beta * p
        alpha, beta = exactly(self.alpha), exactly(self.beta)
        mine, theirs = shortened([p, q], lambda s: (s[0] < self.alpha, s[1] > self.beta * s[0]) == (unsure, surer))
        if not unsure:
            return f"{mine} >= {alpha}"
        return f"{mine} < {alpha} and {theirs} {'>' if surer else '<='} {beta} x {mine}"


def exactly(bound: float) -> str:
    """Format a bound with all its digits."""
    return repr(bound).removesuffix(".0")


def shortened(probs: Sequence[float], holds: Callable[[list[float]], bool]) -> list[str]:
    """Format probabilities with as few digits as possible, such that the shown numbers satisfy `holds`.

    Only a probability of exactly 1 is shown as 1.
    """
    for digits in (2, 3, 4, 6, 9):
        short = [f"{prob:.{digits}g}" for prob in probs]
        shown = list(map(float, short))
        if holds(shown) and [prob == 1 for prob in shown] == [prob == 1 for prob in probs]:
            return short
    return [repr(prob) for prob in probs]
