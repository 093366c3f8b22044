"""The wire of SGLang's native routes: what is sent, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, Field

from cosd_providers.contract import ServerInfo

__all__ = [
    "GREEDY",
    "OWNED",
    "Answer",
    "Card",
    "Decoded",
    "Encoded",
    "Finish",
    "Meta",
    "Rendered",
    "Run",
    "Running",
    "Server",
    "Triple",
]

GREEDY: dict[str, object] = {
    "temperature": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "min_new_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "no_stop_trim": False,
}
"""The most probable token, always. What is left out falls back to the server's `--preferred-sampling-params`."""

OWNED = {
    "custom_logit_processor",
    "input_embeds",
    "input_ids",
    "logprob_start_len",
    "lora_path",
    "return_logprob",
    "return_text_in_logprobs",
    "sampling_params",
    "session_params",
    "stream",
    "text",
    "token_ids_logprob",
    "top_logprobs_num",
}
"""What a user's `extra_body` may not set."""

Triple = tuple[float | None, int, str | None]
"""A token: the logarithm of its probability, its id, and its text, decoded alone."""

Run = tuple[int, ...]
"""Ids that are decoded together: a token, with those before it that leave its character open."""


class Finish(BaseModel):
    """Why an answer ended: `"stop"`, `"length"` or `"abort"`.

    Attributes:
        matched: of a stop the id that ended it, the text, or ids.
    """

    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class Meta(BaseModel):
    """What is told beside the text. The first entry of `input_...` has no probability: nothing of it was computed."""

    finish_reason: Finish | None = None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    input_token_logprobs: list[Triple] | None = None
    input_top_logprobs: list[list[Triple] | None] | None = None
    output_token_logprobs: list[Triple] | None = None
    output_top_logprobs: list[list[Triple] | None] | None = None


class Answer(BaseModel):
    """An answer, or event, of `/generate`."""

    text: str | None = None
    meta_info: Meta


class Card(BaseModel):
    """The answer of `/model_info`."""

    model_path: str
    is_generation: bool = True


class Running(BaseModel):
    """The answer of `/server_info`."""

    version: str | None = None
    max_req_input_len: int | None = None


class Encoded(BaseModel):
    """The answer of `/v1/tokenize` to a list."""

    tokens: list[list[int]]


class Rendered(BaseModel):
    """The answer of `/v1/tokenize` to messages."""

    tokens: list[int]


class Decoded(BaseModel):
    """The answer of `/v1/detokenize` to a list."""

    text: list[str]


@dataclass(frozen=True, slots=True)
class Server:
    """What was learned of a server.

    Attributes:
        info: its card.
        adapter: the adapter (LoRA) to use; None for the model itself.
        beginning: the special tokens that it puts before a text.
        anchor: a plain token: what is decoded after it keeps the space before its word.
        anchored: the text of that token.
        spelt: what runs of ids were found to say; None where a character is left open. It is found out anew elsewhere.
        begun: of these, how many bytes are whole before that character.
        specials: the ids that are no text, with their names.
        ends: those of them that end a sequence.
        shows: whether the others are text in an answer, by their names.
    """

    info: ServerInfo
    adapter: str | None
    beginning: list[int]
    anchor: int
    anchored: str
    spelt: Annotated[dict[Run, bytes | None], Field(exclude=True)] = field(default_factory=dict[Run, "bytes | None"])
    begun: Annotated[dict[Run, int], Field(exclude=True)] = field(default_factory=dict[Run, int])
    specials: dict[int, str] = field(default_factory=dict[int, str])
    ends: set[int] = field(default_factory=set[int])
    shows: Annotated[bool, Field(exclude=True)] = False
