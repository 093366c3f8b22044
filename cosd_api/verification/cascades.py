"""The deferral rules Chow and Diff of language model cascades, applied to single tokens.

From "Faster Cascades via Speculative Decoding" (ICLR 2025), which takes them from cascades of whole answers: a small
model's token is deferred to a large one where the small model is unsure (Chow), or where the large one is more
confident by a margin, its price (Diff). Here the small model is the draft. Both hold where the two tokens differ.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.verification.contract import Needs
from cosd_api.verification.rule import exactly, shortened


class ChowVerifier(BaseModel):
    """Replaces an unsure draft token by whatever the assistant says: `p < 1 - tau`, where the two differ.

    `tau` is the price of a replacement, and 1 - p the risk that the draft's token is wrong. The assistant's probability
    plays no part: it is `AgreementVerifier(alpha=1 - tau)` in the words of cascades.

    Attributes:
        tau: in [0, 1]. 1 never replaces; 0 replaces wherever the draft is not certain.

    Raises:
        pydantic.ValidationError: `tau` is not a number in [0, 1].
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    needs: ClassVar[Needs] = Needs(q=False)
    compared: ClassVar[bool] = True

    kind: Literal["chow"] = "chow"
    tau: float = Field(default=0.5, ge=0, le=1, description="margin, between 0 and 1")

    @property
    def condition(self) -> str:
        """The condition in words."""
        return f"replaces where p < 1 - {self.tau:g}, whatever q is"

    def replaces(self, p: float, q: float) -> bool:  # noqa: ARG002 - it asks only whether the two differ
        """True if `p < 1 - tau`."""
        return p < 1 - self.tau

    def contestable(self, p: float) -> bool:
        """The same: the assistant's probability changes nothing."""
        return p < 1 - self.tau

    def explain(self, p: float, q: float) -> str:  # noqa: ARG002
        """The comparison as it came out, e.g. `"0.31 < 1 - 0.5"`."""
        unsure = p < 1 - self.tau
        (mine,) = shortened([p], lambda short: (short[0] < 1 - self.tau) == unsure)
        return f"{mine} {'<' if unsure else '>='} 1 - {exactly(self.tau)}"


class DiffVerifier(BaseModel):
    """Replaces a draft token where the assistant's is more probable by a margin: `q > p + tau`, where the two differ.

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
        """Exact: no probability exceeds 1, so nothing is replaced where `p + tau >= 1`."""
        return p + self.tau < 1

    def explain(self, p: float, q: float) -> str:
        """The comparison as it came out, e.g. `"0.72 > 0.31 + 0.2"`."""
        surer = q > p + self.tau
        mine, theirs = shortened([p, q], lambda short: (short[1] > short[0] + self.tau) == surer)
        return f"{theirs} {'>' if surer else '<='} {mine} + {exactly(self.tau)}"
