"""The wire of Hugging Face TGI (text-generation-inference): what is sent, and what comes back."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AliasChoices, BaseModel, Field, RootModel

from cosd_providers.greedy import prob
from cosd_providers.parsing import unless_none

__all__ = [
    "OWNED",
    "Encoding",
    "Event",
    "Generated",
    "Info",
    "Rendered",
    "Span",
    "Word",
    "allowed_top",
    "parameters",
    "prob_of",
]

GREEDY: dict[str, object] = {"do_sample": False, "watermark": False, "return_full_text": False, "details": True}
"""The most probable token, always. A temperature of 0 is refused: what samples is left out instead."""

OWNED = {
    *GREEDY,
    "best_of",
    "decoder_input_details",
    "frequency_penalty",
    "grammar",
    "max_new_tokens",
    "repetition_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_n_tokens",
    "top_p",
    "truncate",
    "typical_p",
}
"""What a user's `extra_body` may not set."""

_MARKED = re.compile(r"\s*<.+>\s*", re.DOTALL)

_TOP = re.compile(r"`top_n_tokens` must be >= 0 and <= (\d+)")


class Info(BaseModel):
    """The answer of `/info`."""

    model_id: str
    max_input_tokens: int = Field(validation_alias=AliasChoices("max_input_tokens", "max_input_length"))  # up to 2.0.4
    max_total_tokens: int
    router: str
    version: str | None = None


class Span(BaseModel):
    """A token of `/tokenize`, with its range in bytes of the text."""

    id: int
    start: int
    stop: int


class Encoding(RootModel[list[Span]]):
    """The answer of `/tokenize`."""


class Rendered(BaseModel):
    """The answer of `/chat_tokenize`."""

    templated_text: str


class Word(BaseModel):
    """A token with its probability, as it is sent."""

    id: int
    text: str
    logprob: float | None
    special: bool = False

    @property
    def marks(self) -> bool:
        """Whether it may be a special token: some models end with one that the server does not call special."""
        return self.special or _MARKED.fullmatch(self.text) is not None


class EventDetails(BaseModel):
    """What the last event of a stream says."""

    finish_reason: Annotated[str, unless_none("")]
    input_length: int | None = None  # older versions do not tell


class Event(BaseModel):
    """One event of `/generate_stream`: one token."""

    token: Word
    index: int = 0  # counts from 1; older versions do not tell
    top_tokens: list[Word] | None = None
    details: EventDetails | None = None


class Details(BaseModel):
    """What `/generate` says beside the text."""

    finish_reason: Annotated[str, unless_none("")]
    generated_tokens: int
    prefill: list[Word]
    tokens: list[Word]
    top_tokens: list[list[Word]] | None = None


class Generated(BaseModel):
    """The answer of `/generate`."""

    details: Details

    def last(self) -> Event | None:
        """The last token, in the shape of a stream's event."""
        found, top = self.details, self.details.top_tokens
        if not found.tokens:
            return None
        details = EventDetails(finish_reason=found.finish_reason)
        return Event(token=found.tokens[-1], top_tokens=top[-1] if top else None, details=details)


def parameters(limit: int, top: int, *, prefill: bool = False) -> dict[str, object]:
    """The `parameters` of a generation of at most `limit` tokens.

    Args:
        limit: at least 1.
        top: how many of the most probable tokens are listed at each place; 0 for none.
        prefill: whether the probabilities of the prompt's tokens are asked for.
    """
    listed: dict[str, object] = {"top_n_tokens": top} if top else {}
    return {**GREEDY, **listed, "max_new_tokens": limit, "decoder_input_details": prefill}


def prob_of(word: Word) -> float | None:
    """The probability of a token; None where the server sends null, which is NaN."""
    return prob(word.logprob)


def allowed_top(message: str) -> int | None:
    """How many most probable tokens a server lists that refused to list more (`--max-top-n-tokens`)."""
    found = _TOP.search(message)
    return int(found[1]) if found else None
