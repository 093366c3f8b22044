"""Deferral by the draft's last hidden state: the gate of Co-LLM (Shen et al., ACL 2024).

The probability of deferral is sigma(bias + weights . h), where h is the draft model's last hidden state at the place of
one of its tokens. This is the state after the prompt and the answer before the token, from which the draft computed the
token.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from cosd_api.errors import SettingError
from cosd_api.verification.deferral import Weight
from cosd_api.verification.trained_file import TrainedFile
from cosd_api.verification.trained_gate import TrainedGate, sigmoid
from cosd_api.verification.verifier import Needs
from cosd_providers.contract import Token

__all__ = ["WIDEST", "CoLLMVerifier"]

WIDEST = 65_536
"""The largest width of a hidden state."""

_FILE = TrainedFile(
    thing="a Co-LLM gate", kind="co-llm", command="cosd train-deferral --hidden-states", most_bytes=2_000_000
)


class CoLLMVerifier(TrainedGate):
    """Replaces a draft token if a trained gate on hidden states opens: the gate of Co-LLM (Shen et al., ACL 2024).

    The gate opens if the probability of deferral, sigma(bias + weights . h), is above `eta`. Here, h is the hidden
    state from which the draft computed its own token, so the gate can decide before the assistant is asked. The gate
    works only with the draft model on which it was trained, and the models must share a tokenizer (`unit="token"`).

    Attributes:
        features: the kind of features, always `"last-hidden-state"`.
        width: the number of values in a hidden state, from 1 to 65,536.
        bias: the bias of the logit, in [-1e6, 1e6].
        weights: the weights of the hidden state's `width` values, each in [-1e6, 1e6].
        eta: the threshold for the probability of deferral, in [0, 1].
        trained_on: the origin of the gate, such as the models, the hash and counts of the data, and versions; any JSON
            object.

    Raises:
        pydantic.ValidationError: a number is out of its range, or the number of weights is not `width`.
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
        """The draft's hidden states; the assistant's probabilities are not needed."""
        return Needs(q=False, draft_states=self.width, ties=False)

    @property
    def summary(self) -> str:
        """A description of the gate, for reports."""
        return f"Gate over hidden states of {self.width} numbers."

    def probability(self, token: Token) -> float:
        """Compute the probability of deferral at a token of the draft, from the token's hidden state.

        Raises:
            SettingError: the token has no hidden state, or a hidden state of a different width.
        """
        if token.state is None or len(token.state) != self.width:
            found = "none" if token.state is None else f"one of {len(token.state)} numbers"
            raise SettingError(f"the gate looks at a hidden state of {self.width} numbers, and the token has {found}")
        products = (weight * one for weight, one in zip(self.weights, token.state, strict=True))
        return sigmoid(math.fsum([self.bias, *products]))
