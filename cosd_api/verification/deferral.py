"""Deferral by a gate that reads the draft's lists of tokens, and decides before the assistant is asked.

The probability of deferral is sigma(bias + weights . features), a logistic function of the draft's data about one of
its tokens. Let p be the token's probability, a_1 >= a_2 >= ... the probabilities above 0 of its listed alternatives,
and r = 1 - p - a_1 - a_2 - ... the remaining probability, which is at least 0. The features are:

    top         p
    margin      p - a_1; without alternatives (as for a character of several tokens), p - min(p, r)
    entropy     the entropy of (p, a_1, a_2, ..., r), in nats
    number      1 if the token's first character, white space aside, is a digit
    word        1 if that character is a letter after white space, so that the token begins a word
    part        1 if that character is a letter without white space before it
    end         1 for the end of sequence
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cosd_api.verification.trained_file import TrainedFile
from cosd_api.verification.trained_gate import TrainedGate, sigmoid
from cosd_api.verification.verifier import Needs
from cosd_providers.contract import Token
from cosd_providers.text import readable

__all__ = [
    "DEFERRAL_FEATURES",
    "MOST_LISTED",
    "DeferralVerifier",
    "DeferralWeights",
    "Weight",
    "deferral_features",
]

DEFERRAL_FEATURES = ("top", "margin", "entropy", "number", "word", "part", "end")
"""The names of the features, in order."""
MOST_LISTED = 100
"""The largest number of alternatives to the draft's token that a gate can use."""

_FILE = TrainedFile(
    thing="a deferral gate",
    kind="deferral",
    command="cosd train-deferral",
    most_bytes=200_000,  # enough for a dozen numbers and a description of their origin
)
Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False, strict=True)]
"""A weight of a gate."""


class DeferralWeights(BaseModel):
    """The bias of a `DeferralVerifier`, and the weights of its features; all numbers are in [-1e6, 1e6]."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    bias: Weight
    top: Weight
    margin: Weight
    entropy: Weight
    number: Weight
    word: Weight
    part: Weight
    end: Weight

    def logit(self, found: Sequence[float]) -> float:
        """Compute the logit of deferral from the features, which are in the order of `DEFERRAL_FEATURES`."""
        return math.fsum(
            [self.bias, *(getattr(self, name) * one for name, one in zip(DEFERRAL_FEATURES, found, strict=True))]
        )


class DeferralVerifier(TrainedGate):
    """Replaces a draft token if a trained gate, which reads the draft's list of tokens, opens.

    The gate opens if the probability of deferral, sigma(bias + weights . features), is above `eta`, whatever the
    assistant's probability is. The gate uses only the draft's data about its own token, so it decides before the
    assistant is asked. The models must share a tokenizer (`unit="token"`).

    Attributes:
        listed: the number of alternatives that the draft lists with each of its tokens, from 1 to 100. Use the number
            with which the gate was trained.
        weights: the bias, and the weights of the features.
        eta: the threshold for the probability of deferral, in [0, 1].
        trained_on: the origin of the gate, such as the models, the hash and counts of the data, and versions; any JSON
            object.

    Raises:
        pydantic.ValidationError: a number is out of its range.
    """

    _file: ClassVar[TrainedFile] = _FILE
    _indent: ClassVar[int | None] = 2
    basis: ClassVar[str] = "looks at the draft's list of tokens, not at p and q"

    kind: Literal["deferral"] = "deferral"
    schema_version: Literal[1] = 1
    listed: Annotated[int, Field(ge=1, le=MOST_LISTED, strict=True)]
    weights: DeferralWeights
    eta: Annotated[float, Field(ge=0, le=1, strict=True)]
    trained_on: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def needs(self) -> Needs:
        """The draft's lists of tokens; the assistant's probabilities are not needed."""
        return Needs(q=False, draft_alternatives=self.listed, ties=False)

    @property
    def summary(self) -> str:
        """A description of the gate for reports, with one line for each weight."""
        weights = [f"  {name:8} {value:+.4g}" for name, value in self.weights.model_dump().items()]
        return "\n".join([f"Gate over {self.listed} listed tokens:", *weights])

    def probability(self, token: Token) -> float:
        """Compute the probability of deferral at a token of the draft. The token's probability must be known."""
        others = [one.prob for one in token.alternatives[: self.listed] if one.prob]
        found = deferral_features(readable(token.data), [token.prob or 0.0, *others], end=token.end)
        return sigmoid(self.weights.logit(found))


def deferral_features(text: str, probs: Sequence[float], *, end: bool) -> tuple[float, ...]:
    """Compute the features of a token, in the order of `DEFERRAL_FEATURES`.

    Args:
        text: the text of the token.
        probs: the token's probability, then the probabilities of its listed alternatives, the most probable first.
        end: whether the token is the end of sequence.
    """
    top, rest = probs[0], max(0.0, 1 - math.fsum(probs))
    second = probs[1] if len(probs) > 1 else min(top, rest)
    entropy = -math.fsum(one * math.log(one) for one in (*probs, rest) if one > 0) + 0.0
    bare = text.lstrip()
    letter, spaced = bare[:1].isalpha(), bare != text
    kinds = (bare[:1].isdigit(), letter and spaced, letter and not spaced, end)
    return (top, top - second, entropy, *map(float, kinds))
