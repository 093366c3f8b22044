"""The deferral rule *Diff* of language model cascades, applied to single tokens.

The rule is from "Faster Cascades via Speculative Decoding" (ICLR 2025), which adapts it from cascades of whole answers.
A small model defers a token to a large model if the large model is more confident by a margin that represents the cost
of using the large model. In `DiffVerifier`, the small model is the draft, the large model is the assistant, and the
rule applies only if their tokens differ. `AgreementVerifier` implements Chow's rule, the other rule of that paper.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.verification.rule import exactly, shortened


class DiffVerifier(BaseModel):
    """Replaces a draft token if the assistant's token differs and is more probable by a margin: `q > p + tau`.

    This is the rule *Diff* of "Faster Cascades via Speculative Decoding" (ICLR 2025), applied to single tokens.

    Attributes:
        tau: the margin, in [0, 1]. With 1, no token is ever replaced; with 0, the more probable token is chosen.

    Raises:
        pydantic.ValidationError: `tau` is not a number in [0, 1].
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Literal["diff"] = "diff"
    tau: float = Field(default=0.0, ge=0, le=1, description="margin, between 0 and 1")

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return f"replaces where q > p + {self.tau:g}"

    def replaces(self, p: float, q: float) -> bool:
        """Return True if `q > p + tau`."""
        return q > p + self.tau

    def contestable(self, p: float) -> bool:
        """Return True if `p + tau < 1`; otherwise no `q` is large enough, because no probability exceeds 1."""
        return p + self.tau < 1

    def explain(self, p: float, q: float) -> str:
        """Describe the comparison and its outcome, for example `"0.72 > 0.31 + 0.2"`."""
        surer = q > p + self.tau
        mine, theirs = shortened([p, q], lambda short: (short[1] > short[0] + self.tau) == surer)
        return f"{theirs} {'>' if surer else '<='} {mine} + {exactly(self.tau)}"
