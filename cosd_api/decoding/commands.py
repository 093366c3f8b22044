"""What the decoder wants done: the vocabulary between `cosd.py`, which decides, and `driver.py`, which does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cosd_api.alignment import Decision
from cosd_providers.contract import Question, Token

FinishReason = Literal["stop", "length", "content_filter", "budget", "error"]
DRAFT = -1
"""The source of a token that the draft wrote; an assistant's is its index."""


@dataclass(slots=True)
class Placed:
    """A token at its place in the response.

    Attributes:
        token: the token; the last one of an answer may be cut where a stop string begins.
        source: `DRAFT`, or the index of the assistant whose word it is.
        asked: whether an assistant was asked about its unit.
        decisions: what assistants said there.
        winner: on the tokens of a replacement: the decision that put them there.
        replaced: on the first token of a replacement: the draft's tokens in whose place it stands.
        verified: whether every assistant was heard that could have changed it.
        draft: number of the draft that wrote it, or what it replaces.
        at: when it was placed here, in the seconds of whoever feeds the decoder.
        unit: number of its unit in the answer, from 0; once it is settled.
        round: of drafting, from 1; once it is settled.
    """

    token: Token
    source: int = DRAFT
    asked: bool = False
    decisions: tuple[Decision, ...] = ()
    winner: Decision | None = None
    replaced: tuple[Token, ...] = ()
    verified: bool = True
    draft: int = 0
    at: float = 0.0
    unit: int = 0
    round: int = 1


@dataclass(frozen=True, slots=True)
class StartDraft:
    """Let the draft model go on from `text`: at most `max_tokens` tokens.

    `own` are the tokens that it wrote itself since the start or the last replacement: `text` ends with them.
    `ahead` is a draft that is started before the verdict after which it would be wanted.
    """

    draft: int
    text: bytes
    max_tokens: int
    continuation: Any
    own: tuple[bytes, ...]
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class CancelDraft:
    """Nobody waits for this draft any more."""

    draft: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask one assistant, in one request, what it would say at some places of `text`."""

    ask: int
    assistant: int
    text: bytes
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class CancelAsk:
    """No answer of this request can matter any more."""

    ask: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Say so when it is time to ask what has come together by then (`batch_wait`)."""

    wait: int


@dataclass(frozen=True, slots=True)
class Emit:
    """These tokens are final. What was emitted is never taken back."""

    tokens: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The answer is complete: no event will change it."""

    finish_reason: FinishReason
    stop_reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The answer cannot go on without what failed."""

    error: Exception


Command = StartDraft | CancelDraft | Ask | CancelAsk | Wait | Emit | Finish | Fail
