"""The wire of llama.cpp's `/completion`: what is sent, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BaseModel, Field, RootModel, model_validator

from cosd_providers.contract import Piece
from cosd_providers.parsing import unless_none
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

__all__ = [
    "FIELDS",
    "GREEDY",
    "OWNED",
    "Answer",
    "Answers",
    "Entry",
    "Head",
    "Ids",
    "Models",
    "Pieces",
    "Prefix",
    "Props",
    "Rendered",
    "Slots",
    "bill",
    "sent",
]

Prefix = list[str | int]
"""A prompt: a text, and the ids that follow it; ids may stand before the text, too."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a prompt that is sent as ids, so that nothing in it is read as a special token.

    Attributes:
        text: what a prompt begins with.
        ids: that text.
    """

    text: str = ""
    ids: tuple[int, ...] = ()

    def prefix(self, prompt: str, text: bytes) -> Prefix:
        """A prompt and the response so far."""
        return [*self.ids, prompt.removeprefix(self.text) + sendable(text)]


GREEDY: dict[str, object] = {
    "temperature": 0,
    "samplers": ["temperature"],
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "logit_bias": [],
    "ignore_eos": False,
    "post_sampling_probs": False,
    "stop": ["\0 no text ends like this \0"],
    "grammar": "",
}
"""The most probable token, always: no sampler may change that, and none may stop it early.

What is left out falls back to what the server was started with, and an empty list of stops to its reverse prompts.
"""

FIELDS = [
    "index",
    "stop",
    "stop_type",
    "tokens",
    "tokens_evaluated",
    "tokens_predicted",
    "truncated",
    "timings/cache_n",
    "completion_probabilities",
]
"""What is needed of an answer; without this list it repeats the prompt and all settings."""

OWNED = {
    *GREEDY,
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "n_cmpl",
    "n_predict",
    "n_probs",
    "prompt",
    "response_fields",
    "return_tokens",
    "stream",
}
"""What a user's `extra_body` may not set."""


Byte = Annotated[int, Field(ge=0, le=255)]


class Entry(BaseModel):
    """A token with its probability, as it is sent."""

    id: int
    bytes: list[Byte]
    logprob: float | None
    top_logprobs: tuple[Entry, ...] = ()  # a list would be copied for each token


class Answer(BaseModel):
    """An answer of `/completion`, or one event of its stream."""

    index: int = 0
    stop: bool = False
    stop_type: Annotated[str, unless_none("")] = ""
    tokens: tuple[int, ...] = ()
    tokens_evaluated: int
    tokens_predicted: int
    truncated: bool = False
    cached: int = Field(0, validation_alias=AliasChoices("timings/cache_n", AliasPath("timings", "cache_n")))
    completion_probabilities: Annotated[tuple[Entry, ...], unless_none(())] = ()


class Answers(RootModel[list[Answer]]):
    """The answers to a list of prompts; that to a list of one comes bare."""

    @model_validator(mode="before")
    @classmethod
    def _as_list(cls, data: Any) -> Any:
        return [data] if isinstance(data, dict) else data  # pyright: ignore[reportUnknownVariableType]


class RawPiece(BaseModel):
    """A token of `/tokenize`; its bytes where they are no text."""

    id: int
    piece: str | list[Byte]


class Pieces(BaseModel):
    """The answer of `/tokenize`."""

    tokens: list[RawPiece]

    def pieces(self) -> list[Piece]:
        """In bytes."""
        return [
            Piece(one.id, one.piece.encode() if isinstance(one.piece, str) else bytes(one.piece)) for one in self.tokens
        ]


class Ids(BaseModel):
    """The answer of `/tokenize` without the pieces."""

    tokens: list[int]


class Slot(BaseModel):
    """A slot of `/slots`."""

    speculative: bool = False


class Slots(RootModel[list[Slot]]):
    """The answer of `/slots`."""


class Settings(BaseModel):
    """What a slot of the server has."""

    n_ctx: int | None = None


class Props(BaseModel):
    """The answer of `/props`."""

    default_generation_settings: Settings
    bos_token: str = ""
    eos_token: str = ""
    build_info: str | None = None


class Rendered(BaseModel):
    """The answer of `/apply-template`."""

    prompt: str


class Listed(BaseModel):
    """A model of `/v1/models`."""

    id: str
    aliases: list[str] = []


class Models(BaseModel):
    """The answer of `/v1/models`."""

    data: list[Listed]


def sent(prefix: Prefix) -> object:
    """A prompt as it is sent: the server takes a list only where it holds both text and ids."""
    return prefix if len(prefix) > 1 else prefix[0]


def bill(usage: Usage, answer: Answer) -> None:
    """Counts what an answer, or a stream so far, has cost."""
    usage.bill(answer.tokens_evaluated, answer.tokens_predicted, answer.cached)
