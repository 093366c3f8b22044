"""TGI's wire format: the shapes of its answers, the parameters of its requests, and the encoding of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, RootModel

from cosd_providers.contract import Token
from cosd_providers.greedy import prob
from cosd_providers.parsing import LogProb, unless_none
from cosd_providers.vocabulary import looks_special

_GREEDY: Mapping[str, object] = {"do_sample": False, "watermark": False, "return_full_text": False, "details": True}
"""Fields for greedy decoding. TGI refuses a temperature of 0, so the sampling fields are left out."""

OWNED = {
    *(*_GREEDY, "best_of", "decoder_input_details", "frequency_penalty", "grammar", "max_new_tokens"),
    *("repetition_penalty", "seed", "stop", "temperature", "top_k", "top_n_tokens", "top_p", "truncate", "typical_p"),
}
"""Fields that a user's `extra_body` may not set."""


class TgiInfo(BaseModel):
    """The response of `/info`."""

    model_id: str
    max_input_tokens: int
    max_total_tokens: int
    router: str
    version: str | None = None


class TokenSpan(BaseModel):
    """A token from `/tokenize`, with its byte range in the text."""

    id: int
    start: int
    stop: int


class TgiEncoding(RootModel[list[TokenSpan]]):
    """The response of `/tokenize`."""


class TgiPrompt(BaseModel):
    """The response of `/chat_tokenize`."""

    templated_text: str


class TgiToken(BaseModel):
    """A token with its log probability."""

    id: int
    text: str
    logprob: LogProb | None
    special: bool = False

    @property
    def prob(self) -> float | None:
        """The token's probability; None for NaN."""
        return prob(self.logprob)

    @property
    def may_end(self) -> bool:
        """True if the token may be an end of sequence. In some models, an end is not flagged as special."""
        return self.special or looks_special(self.text)


class TgiEnd(BaseModel):
    """The details in the last event of a stream."""

    finish_reason: Annotated[str, unless_none("")]
    input_length: int


class TgiEvent(BaseModel):
    """An event of `/generate_stream`, with one token."""

    token: TgiToken
    index: int  # from 1
    top_tokens: list[TgiToken] | None = None
    details: TgiEnd | None = None


class TgiDetails(BaseModel):
    """The details in the response of `/generate`."""

    finish_reason: Annotated[str, unless_none("")]
    generated_tokens: int
    prefill: list[TgiToken]
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | None = None


class TgiAnswer(BaseModel):
    """The response of `/generate`."""

    details: TgiDetails

    def last(self) -> TgiEvent | None:
        """Return the last token as an event; None if there is no token."""
        found, top = self.details, self.details.top_tokens
        if not found.tokens:
            return None
        end = TgiEnd(finish_reason=found.finish_reason, input_length=0)
        return TgiEvent(token=found.tokens[-1], index=0, top_tokens=top[-1] if top else None, details=end)


def parameters(limit: int, top: int, *, prefill: bool = False) -> dict[str, object]:
    """Return the `parameters` of a request for at most `limit` tokens, each with the `top` most probable tokens."""
    return {**_GREEDY, "top_n_tokens": top, "max_new_tokens": limit, "decoder_input_details": prefill}


@dataclass(frozen=True, slots=True)
class EncodedText:
    """An encoded text."""

    ids: list[int]  # the ids of the text's own tokens
    # the bytes of each token; if several tokens share a character, the last token has all of the character's bytes
    data: list[bytes]
    all: list[int]  # the ids that the model reads, including special tokens before the text

    @property
    def special(self) -> int:
        """The number of special tokens before the text."""
        return len(self.all) - len(self.ids)

    def scored(self, probs: Iterable[float | None]) -> Iterator[Token]:
        """Yield tokens of whole characters, each with the lowest probability of its parts; `probs` belong to `ids`."""
        parts: list[float | None] = []
        for data, value in zip(self.data, probs, strict=True):
            parts.append(value)
            if data:
                known = [part for part in parts if part is not None]
                yield Token(data, min(known) if len(known) == len(parts) else None)
                parts = []

    @classmethod
    def of(cls, raw: TgiEncoding, text: str, before: tuple[int, ...]) -> Self:
        """Create the encoding of `text` from the server's answer."""
        ids = [span.id for span in raw.root]
        first = len(before) if tuple(ids[: len(before)]) == before else 0
        return cls(ids[first:], _bytes_of(raw.root[first:], text.encode()), ids)


def _bytes_of(spans: Sequence[TokenSpan], text: bytes) -> list[bytes]:
    """Find each token's bytes. If a token overlaps the next one, or has no width, a later token has its bytes."""
    data = [b""] * len(spans)
    begun = stop = 0
    for at, span in enumerate(spans):
        last = at + 1 == len(spans)
        stop = len(text) if last else max(stop, span.stop)
        if stop > begun and (last or spans[at + 1].start >= stop):
            data[at] = text[begun:stop]
            begun = stop
    return data
