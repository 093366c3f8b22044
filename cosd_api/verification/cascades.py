"""The deferral rule Diff of language model cascades, applied to single tokens.

From "Faster Cascades via Speculative Decoding" (ICLR 2025), which takes it from cascades of whole answers: a small
model's token is deferred to a large model if that is more confident by a margin, its price. Here the small model is the
draft, and the rule applies if the two tokens differ. The other rule of that paper, Chow's, is `AgreementVerifier`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.verification.rule import exactly, shortened


class DiffVerifier(BaseModel):
    """Replaces a draft token if the assistant's is more probable by a margin: `q > p + tau`, if the two differ.

    Attributes:
        tau: the margin, in [0, 1]. 1 never replaces; 0 takes the more probable of the two.

    Raises:
        pydantic.ValidationError: `tau` is not a number in [0, 1].
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    compared: ClassVar[bool] = True

    kind: Literal["diff"] = "diff"
    tau: float = Field(default=0.0, ge=0, le=1, description="margin, between 0 and 1")

    @property
    def condition(self) -> str:
        """The condition in words."""
        return f"replaces where q > p + {self.tau:g}"

    def replaces(self, p: float, q: float) -> bool:
        """True if `q > p + tau`."""
        return q > p + self.tau

    def contestable(self, p: float) -> bool:
        """Exact: no probability exceeds 1, so no token is replaced if `p + tau >= 1`."""
        return p + self.tau < 1

    def explain(self, p: float, q: float) -> str:
        """The comparison as it came out, e.g. `"0.72 > 0.31 + 0.2"`."""
        surer = q > p + self.tau
        mine, theirs = shortened([p, q], lambda short: (short[1] > short[0] + self.tau) == surer)
        return f"{theirs} {'>' if surer else '<='} {mine} + {exactly(self.tau)}"
