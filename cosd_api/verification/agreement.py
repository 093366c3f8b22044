"""Verification by agreement alone, for assistants that report no probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.verification.contract import Needs
from cosd_api.verification.rule import exactly, shortened
from cosd_providers.deferred import outdated

__all__ = ["AgreementVerifier", "chow_verifier", "present_verifier", "recorded_verifier"]


class AgreementVerifier(BaseModel):
    """Replaces an unsure draft token by the assistant's token: `p < alpha`, if the two differ.

    Equations (4) and (5) without (6), for an assistant that reports no probability to compare. It also takes the word
    of an assistant that is only guessing, so prefer `RuleVerifier` if possible.

    With `alpha = 1 - tau` it is Chow's rule of cascades, with the price `tau`.

    Attributes:
        alpha: the draft is unsure below this probability. 0 never replaces.

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


def chow_verifier(*, tau: float = 0.5) -> AgreementVerifier:
    """The present verifier for `ChowVerifier(tau=tau)`; warns that the name is outdated.

    Raises:
        ValueError: `tau` is not a number in [0, 1].
    """
    made = AgreementVerifier.model_validate(recorded_verifier({"kind": "chow", "tau": tau}))
    outdated(f"ChowVerifier(tau={tau})", f"AgreementVerifier(alpha={made.alpha})")
    return made


def recorded_verifier(given: object) -> object:
    """The fields of a verifier in a record; `"kind": "chow"` in an earlier record is `AgreementVerifier`.

    Raises:
        ValueError: its tau is not a number in [0, 1].
    """
    found: object = given
    fields: dict[str, Any] = dict(cast("Mapping[str, Any]", found)) if isinstance(found, Mapping) else {}
    if fields.get("kind") != "chow":
        return given
    tau = fields.pop("tau", 0.5)
    try:
        alpha = 1 - float(tau)
    except (TypeError, ValueError):
        alpha = -1.0
    if not 0 <= alpha <= 1 or "alpha" in fields:
        raise ValueError("chow has one number, tau, between 0 and 1")
    return {**fields, "kind": "agreement", "alpha": alpha}


def present_verifier(given: object) -> object:
    """The fields of a verifier in a user's file; warns that `"kind": "chow"` is outdated.

    Raises:
        ValueError: its tau is not a number in [0, 1].
    """
    found = recorded_verifier(given)
    if found is not given:
        alpha = cast("Mapping[str, Any]", found)["alpha"]
        outdated("the verifier 'chow'", f"'agreement' with alpha = 1 - tau, here {alpha:g},")
    return found
