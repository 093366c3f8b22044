"""Requests in which a model writes, the tokens and the end of an answer, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

from cosd_api.alignment import Decision
from cosd_providers.contract import DraftEnd, Token
from cosd_providers.errors import ProviderError

FinishReason = Literal["stop", "length", "content_filter", "budget", "error"]
DRAFT = -1
"""Value of `source` for tokens that the draft wrote. For an assistant's tokens, `source` is the assistant's index."""


@dataclass(slots=True)
class Placed:
    """A token at its place in the response.

    Attributes:
        token: the token. The last token of an answer may be cut off at a stop string.
        source: `DRAFT`, or the index of the assistant that wrote it.
        asked: whether an assistant was asked about the token's unit.
        decisions: the decisions about the assistants' answers at this place.
        winner: on each token of a replacement, the decision that put the token there.
        replaced: on the first token of a replacement, the draft's tokens that were replaced.
        verified: whether the answers of all assistants that could have changed the token were known.
        draft: number of the draft that wrote the token, or the text that the token replaced.
        at: time at which the token was placed, in seconds since the start of the answer.
        reason: reason for the token, in words, if it does not follow from the decisions.
        alone: whether an assistant wrote the token alone, because the draft had failed.
        unit: number of the token's unit or segment in the answer, counted from 0; valid after the token is settled.
        round: number of the drafting round, counted from 1; valid after the token is settled.
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
    reason: str | None = None
    alone: bool = False
    unit: int = 0
    round: int = 1


# --------------------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True)
class StartDraft:
    """Let the draft model continue `text` by up to `max_tokens` tokens.

    Attributes:
        draft: number of the draft.
        text: the response so far, which ends with `own`.
        max_tokens: maximum number of tokens to write.
        continuation: the `continuation` of the last `DraftEnd`, if this draft continues the draft that ended with it.
        own: the tokens that the draft model wrote since the start or the last replacement.
        alternatives: number of other tokens to list with each token.
        temperature: 0 to write the most probable tokens, 1 to draw tokens.
        seed: seed of the random draws.
        states: whether to report the hidden state with each token.
        ids: ids of the tokens so far, if the draft continues its own ids; see `contract.Context`.
    """

    draft: int
    text: bytes
    max_tokens: int
    continuation: Any
    own: tuple[bytes, ...]
    alternatives: int = 0
    temperature: float = 0
    seed: int | None = None
    states: bool = False
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Let an assistant write greedily from a place in the answer, and hear each token.

    Attributes:
        watch: number of the request, from the same series as the numbers of questions.
        assistant: index of the assistant.
        text: the response up to the place at which the watch begins.
        ids: the ids before that place.
        max_tokens: maximum number of tokens to write.
        alternatives: number of other tokens to list with each token.
    """

    watch: int
    assistant: int
    text: bytes
    ids: tuple[int, ...]
    max_tokens: int
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    """End the answer, which is complete. Later events do not change it."""

    finish_reason: FinishReason
    stop_reason: str


def cut_short(end: DraftEnd) -> Finish:
    """The end of an answer whose model cannot continue because its context is full or a filter intervened."""
    return Finish("length", "context") if end.reason == "context" else Finish("content_filter", "content_filter")


# ----------------------------------------------------------------------------------------------------------- report


def may_pass(error: Exception) -> TypeGuard[ProviderError]:
    """Test whether an error is temporary. A permanent error would recur at once, or concerns only this text."""
    return isinstance(error, ProviderError) and error.retryable


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of an assistant, without which the answer continues.

    Attributes:
        token: index of the first token of the answer that the assistant did not judge.
        error: the error that caused the loss.
        before: whether the assistant was lost before the answer began.
    """

    token: int
    error: Exception
    before: bool = False


@dataclass(frozen=True, slots=True)
class Handover:
    """A place at which another model begins to write.

    Attributes:
        token: index of the first token after the seam.
        source: the model that writes from there on: the index of an assistant, which writes alone, or `DRAFT`, which is
            judged again.
        error: the failure of the model before it; None if the draft has returned.
    """

    token: int
    source: int
    error: Exception | None = None

    @property
    def reason(self) -> str | None:
        """The class name of the error."""
        return None if self.error is None else type(self.error).__name__


@dataclass(frozen=True, slots=True)
class Contender:
    """A text that one or more models proposed for a segment.

    Attributes:
        sources: the models that proposed the text, in the order in which the user gave the models; each is `DRAFT` or
            the index of an assistant.
        text: the proposed text as bytes.
        end: whether the answer ends after the text.
        scores: each model's measure of the text, in the order of the models; None if the model was not asked or cannot
            measure the text.
        mean: the mean of the scores, or another number by which the texts are compared; the text with the lowest number
            wins. None if nothing was measured.
    """

    sources: tuple[int, ...]
    text: bytes
    end: bool
    scores: tuple[float | None, ...] = ()
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class DecidedSegment:
    """One segment of an answer, with the proposed texts and the choice among them.

    Attributes:
        candidates: the proposed texts, in the order of the models.
        winner: index of the chosen text.
        reason: reason for the choice, in words.
    """

    candidates: tuple[Contender, ...]
    winner: int
    reason: str


@dataclass(slots=True)
class Report:
    """The facts about an answer so far that a result needs. For counts that are not listed here, see `FusionResult`.

    Attributes:
        text: the answer as bytes.
        judged: whether the method judges a draft; if not, the counts of kept and replaced tokens have no meaning.
        unanswered: number of places at which an assistant gave no answer.
        ties: number of places at which the draft's token was kept because an assistant found it as probable as its own
            first choice, within `tie`.
        off_path: number of units for which an assistant had to continue a cut text; None if they are not counted.
        unjudged: number of units that were kept without a verdict although an answer could have changed them; None if
            they are not counted.
        lost: the assistants without which the answer continues, by index.
        seams: the places at which an assistant began to write alone, after a failure, or the draft returned.
        segments: the segments, for methods that decide segment by segment.
        warnings: warnings that the method added.
        weights: the models' weights, if the method determined them.
    """

    text: bytes = b""
    judged: bool = True
    kept: int = 0
    replaced: int = 0
    replacements: int = 0
    iterations: int = 1
    unanswered: int = 0
    ties: int = 0
    off_path: int | None = None
    unjudged: int | None = None
    lost: Mapping[int, Loss] = field(default_factory=dict[int, Loss])
    seams: Sequence[Handover] = ()
    segments: Sequence[DecidedSegment] = ()
    warnings: Sequence[str] = ()
    weights: Mapping[int, float] | None = None
