"""Deferral by the draft's last hidden state: the gate of Co-LLM (Shen et al., ACL 2024).

The probability of deferral is sigma(bias + weights . h), where h is the draft model's last hidden state in the place of
one of its tokens: the state after the prompt and the answer before the token, from which the token itself was computed.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from cosd_api.errors import SettingError
from cosd_api.verification.contract import Needs
from cosd_api.verification.deferral import Weight
from cosd_api.verification.gate import TrainedGate, sigmoid
from cosd_api.verification.trained_file import TrainedFile, shown
from cosd_providers.contract import Token

__all__ = ["WIDEST", "CoLLMVerifier"]

WIDEST = 65_536
"""Numbers of a hidden state, at most."""

_FILE = TrainedFile(
    thing="a Co-LLM gate",
    kind="co-llm",
    described="a Co-LLM gate is one JSON file, as cosd train-deferral --hidden-states writes it",
    made_by="cosd train-deferral --hidden-states makes a gate of them",
    fields=("kind", "schema_version", "features", "width", "bias", "weights", "eta", "trained_on"),
    most_bytes=2_000_000,
    bounded=f"a gate has at most {WIDEST} numbers",
)


class CoLLMVerifier(TrainedGate):
    """A trained gate on hidden states: replaces if the probability of deferral is above `eta`.

    The gate uses the state from which the draft computed its own token, so it decides before the assistant is asked.
    For models with one tokenizer: `unit="token"`. It fits only the draft model on which it was trained.

    Attributes:
        features: the kind of features.
        width: numbers of a hidden state.
        bias: of the logit.
        weights: of the numbers of a state, `width` of them.
        eta: the threshold, in [0, 1].
        trained_on: the origin of the gate (model pair, hash and counts of the data, versions); free-form.

    Raises:
        pydantic.ValidationError: a number is out of its range, or there are more or fewer weights.
    """

    _file: ClassVar[TrainedFile] = _FILE
    _on: ClassVar[str] = " on hidden states"
    basis: ClassVar[str] = "looks at the draft's hidden state, not at p and q"

    kind: Literal["co-llm"] = "co-llm"
    schema_version: Literal[1] = 1
    features: Literal["last-hidden-state"] = "last-hidden-state"
    width: Annotated[int, Field(ge=1, le=WIDEST, strict=True)]
    bias: Weight
    weights: Annotated[tuple[Weight, ...], Field(repr=False)]
    eta: Annotated[float, Field(ge=0, le=1, strict=True)]
    trained_on: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_a_weight_for_each(self) -> Self:
        if len(self.weights) != self.width:
            raise ValueError(f"it has {len(self.weights)} weights, and its width is {self.width}")
        return self

    @property
    def needs(self) -> Needs:
        """The draft's hidden states, and no probability of the assistant."""
        return Needs(q=False, draft_states=self.width, ties=False)

    @property
    def summary(self) -> str:
        """The gate in words, for reports."""
        return f"Gate over hidden states of {self.width} numbers."

    def probability(self, token: Token) -> float:
        """The probability of deferral at a token of the draft with a known state.

        Raises:
            SettingError: its state is not known, or of another width.
        """
        if token.state is None or len(token.state) != self.width:
            found = "none" if token.state is None else f"one of {len(token.state)} numbers"
            raise SettingError(f"the gate looks at a hidden state of {self.width} numbers, and the token has {found}")
        products = (weight * one for weight, one in zip(self.weights, token.state, strict=True))
        return sigmoid(math.fsum([self.bias, *products]))

    @staticmethod
    def _fault(error: ValidationError) -> str:
        """The first fault of a gate, in words."""
        first = error.errors(include_url=False)[0]
        if not first["loc"]:
            return first["msg"].removeprefix("Value error, ")
        name = str(first["loc"][0])
        if first["type"] == "missing":
            return f"its {name} is missing; {_FILE.described}"
        number = f" number {int(first['loc'][1]) + 1}" if len(first["loc"]) > 1 else ""
        return f"its {name}{number} is {shown(first['input'])}: {first['msg'][:1].lower()}{first['msg'][1:]}"
