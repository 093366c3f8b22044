"""Replacement of tokens that the assistant finds improbable, however confident the draft is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field, field_serializer

from cosd_api.errors import SettingError
from cosd_api.verification.decision_place import Place, PlaceVerifier
from cosd_api.verification.rule import exactly, shortened
from cosd_api.verification.verifier import Needs


class SurpriseVerifier(PlaceVerifier):
    """Replaces a draft token that the assistant finds improbable: `q(draft's token) < gamma and q > beta * p`.

    `RuleVerifier` questions the draft only if the draft is unsure. This verifier also finds tokens about which the
    draft is confidently wrong, so it asks the assistant about nearly every token. The assistant's probability of the
    draft's token is read from the list of the assistant's most probable tokens. `needs` makes this list so long that
    every unlisted token is improbable. The models must share a tokenizer (`unit="token"`).

    Attributes:
        gamma: a number in (0, 1]; the draft's token counts as improbable if the assistant's probability of it is lower.
        beta: the probability of the assistant's token must exceed `beta` times the draft's probability of its own
            token; at least 0.
        window: the smallest number of places to ask about in one question while the draft is being written, at least 1.
            This number changes only the cost, not the text.

    Raises:
        pydantic.ValidationError: a number is out of its range.
    """

    basis: ClassVar[str] = "looks at the draft's token, too"
    compared: ClassVar[bool] = True

    kind: Literal["surprise"] = "surprise"
    gamma: float = Field(default=0.1, gt=0, le=1, description="the assistant finds a token improbable below this")
    beta: float = Field(default=0.5, ge=0, description="an assistant's probability must exceed this times the draft's")
    window: int = Field(default=16, ge=1, description="tokens that are asked about together")

    @field_serializer("beta", when_used="json")
    def _without_bare_infinity(self, bound: float) -> float | str:
        return bound if math.isfinite(bound) else "Infinity"

    @property
    def needs(self) -> Needs:
        """Lists of the assistant's tokens, so long that all unlisted tokens have probabilities below `gamma`."""
        return Needs(alternatives=math.floor(1 / self.gamma), window=self.window)

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        improbable = f"the assistant's probability of the draft's token < {self.gamma:g}"
        return f"replaces where {improbable} and q > {self.beta:g} × p"

    def at(self, place: Place) -> Surprise:
        """Return the verifier for a place; `place.draft_q` is the assistant's probability of the draft's token.

        Raises:
            SettingError: the place comes from a record that does not contain this probability.
        """
        if place.draft_q is None and place.start is None:
            raise SettingError("the assistant's probability of the draft's text is not recorded there")
        return Surprise(self.gamma, self.beta, place.draft_q)

    def contestable(self, p: float) -> bool:
        """Return True if `beta * p < 1`; otherwise no `q` is large enough, because no probability exceeds 1."""
        return self.beta * p < 1


@dataclass(frozen=True, slots=True)
class Surprise:
    """The verifier that decides about one draft token.

    Attributes:
        gamma: see `SurpriseVerifier`.
        beta: see `SurpriseVerifier`.
        draft_q: the assistant's probability of the token, or its upper bound; None before the assistant is asked.
    """

    gamma: float
    beta: float
    draft_q: float | None

    def replaces(self, p: float, q: float) -> bool:
        """Return True if `draft_q < gamma and q > beta * p`, and False if `draft_q` is unknown."""
        return self.draft_q is not None and self.draft_q < self.gamma and q > self.beta * p

    def contestable(self, p: float) -> bool:
        """Return True if `beta * p < 1`; see `SurpriseVerifier.contestable`."""
        return self.beta * p < 1

    def explain(self, p: float, q: float) -> str:
        """Describe the comparisons and their outcomes, for example `"0.02 < 0.1 and 0.72 > 0.5 x 0.9"`."""
        if self.draft_q is None:
            return "the assistant's probability of the draft's text is not known"
        improbable, surer = self.draft_q < self.gamma, q > self.beta * p
        gamma, beta = exactly(self.gamma), exactly(self.beta)
        theirs, mine, other = shortened(
            [self.draft_q, p, q], lambda s: (s[0] < self.gamma, s[2] > self.beta * s[1]) == (improbable, surer)
        )
        if not improbable:
            return f"{theirs} >= {gamma}"
        return f"{theirs} < {gamma} and {other} {'>' if surer else '<='} {beta} x {mine}"
