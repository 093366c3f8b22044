"""The vocabulary between a decoder, which decides, and the driver, which acts: events in, commands out, a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cosd_api.alignment import Decision
from cosd_providers.contract import DraftEnd, Proposal, Question, Token

FinishReason = Literal["stop", "length", "content_filter", "budget", "error"]
DRAFT = -1
"""The source of a token that the draft wrote; an assistant's is its index."""


@dataclass(slots=True)
class Placed:
    """A token at its place in the response.

    Attributes:
        token: the token; a stop string may cut the last token of an answer.
        source: `DRAFT`, or the index of the assistant that wrote it.
        asked: whether an assistant was asked about its unit.
        decisions: the assistants' decisions there.
        winner: on the tokens of a replacement, the decision that put them there.
        replaced: on the first token of a replacement, the draft's tokens that it replaced.
        verified: whether every assistant that could have changed it was heard.
        draft: number of the draft that wrote it, or that wrote the text it replaced.
        at: time at which it was placed, in seconds of the driver's clock.
        reason: why it is there, in words, if no decision about the draft gives the reason.
        unit: number of its unit or segment in the answer, from 0; once it is settled.
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
    reason: str | None = None
    unit: int = 0
    round: int = 1


# --------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class StartDraft:
    """Let the draft model continue `text` by at most `max_tokens` tokens.

    Attributes:
        draft: its number.
        text: the response so far; it ends with `own`.
        max_tokens: at most.
        continuation: of its last `DraftEnd`, if it continues that draft.
        own: the tokens that the draft model wrote since the start or the last replacement.
        ahead: whether it is a hedge, which starts before the verdict that would make it the draft.
        alternatives: number of other choices to list with each token.
        temperature: 0 for the most probable tokens, 1 to draw them.
        seed: of the draws.
        states: whether each token carries its hidden state.
        ids: of the tokens so far, if the draft continues from its own path; see `contract.Context`.
    """

    draft: int
    text: bytes
    max_tokens: int
    continuation: Any
    own: tuple[bytes, ...]
    ahead: bool = False
    alternatives: int = 0
    temperature: float = 0
    seed: int | None = None
    states: bool = False
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CancelDraft:
    """Cancel a draft whose tokens are no longer needed."""

    draft: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask one assistant, in one request, for its own tokens at some places of `text`.

    Attributes:
        ask: its number.
        assistant: its index; `DRAFT` asks the draft model itself for a probability that its stream did not show.
        text: the response, up to the last of the places or beyond.
        questions: one for each place.
        alternatives: number of other tokens to list with each own token.
        paths: the ids before each place, if the models have the same ids: then each place is asked for one token.
    """

    ask: int
    assistant: int
    text: bytes
    questions: tuple[Question, ...]
    alternatives: int = 0
    paths: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CancelAsk:
    """Cancel a request whose answers can no longer matter."""

    ask: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Let an assistant write greedily after a path of the answer, and report each token (`watched`).

    Attributes:
        watch: its number, from the numbers of questions.
        assistant: its index.
        text: the response up to the place at which it begins.
        ids: the path of the same place.
        max_tokens: at most.
        alternatives: number of other tokens to list with each own token.
    """

    watch: int
    assistant: int
    text: bytes
    ids: tuple[int, ...]
    max_tokens: int
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class CloseWatch:
    """Close a watch whose further tokens are not needed."""

    watch: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Count a place that a watch has answered."""

    watch: int
    assistant: int


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand out these tokens: they are final, and never taken back."""

    tokens: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the answer: it is complete, and no event will change it."""

    finish_reason: FinishReason
    stop_reason: str


def cut_short(end: DraftEnd) -> Finish:
    """The end of an answer whose model cannot continue: its context is full, or a filter intervened."""
    return Finish("length", "context") if end.reason == "context" else Finish("content_filter", "content_filter")


@dataclass(frozen=True, slots=True)
class Fail:
    """End the answer with an error, because it cannot continue after a failure."""

    error: Exception


Command = StartDraft | CancelDraft | Ask | CancelAsk | Watch | CloseWatch | Heard | Emit | Finish | Fail


# ----------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True, slots=True)
class Loss:
    """An assistant that an answer continues without.

    Attributes:
        token: index of the first token of the answer about which it was not heard.
        error: why.
        before: whether it was lost before the answer began.
    """

    token: int
    error: Exception
    before: bool = False


@dataclass(frozen=True, slots=True)
class Contender:
    """A text that one or several models proposed for a segment.

    Attributes:
        sources: the models, `DRAFT` or the index of an assistant; the first listed comes first.
        text: its bytes.
        end: whether the answer ends after it.
        scores: each model's measure of it, in the order of the models; None if a model was not asked or cannot give
            one.
        mean: the mean of the scores, or another number to compare; the least wins. None if nothing was measured.
    """

    sources: tuple[int, ...]
    text: bytes
    end: bool
    scores: tuple[float | None, ...] = ()
    mean: float | None = None


@dataclass(frozen=True, slots=True)
class DecidedSegment:
    """One segment of an answer: the texts proposed for it, and the text that was taken.

    Attributes:
        candidates: the texts, in the order of the models.
        winner: index of the text that was taken.
        reason: why, in words.
    """

    candidates: tuple[Contender, ...]
    winner: int
    reason: str


@dataclass(slots=True)
class Report:
    """An answer so far, as a result needs it; the counts are defined in `FusionResult`.

    Attributes:
        text: its bytes.
        judged: whether a draft is judged at all; if not, the counts of kept and replaced tokens mean nothing.
        unanswered: places at which an assistant had no answer.
        ties: places at which the draft's token was kept because the assistant found it as probable as its own, within
            `tie`.
        off_path: units that an assistant was asked about after a cut text; None if they are not counted.
        unjudged: units that were kept though an answer could have changed them; None if they are not counted.
        lost: the assistants without which it continues.
        segments: of methods that decide segment by segment.
        warnings: of the method itself.
        weights: of the models, if the method measured them.
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
    hedged_drafts: int = 0
    hedge_hits: int = 0
    hedged_tokens: int = 0
    lost: Mapping[int, Loss] = field(default_factory=dict[int, Loss])
    segments: Sequence[DecidedSegment] = ()
    warnings: Sequence[str] = ()
    weights: Mapping[int, float] | None = None


# ---------------------------------------------------------------------------------------------------------- decoder


class Decoder(Protocol):
    """One fused answer in progress, by any method: it does no I/O, and reacts to events with commands.

    Attributes:
        now: the time of the next event in the driver's seconds; it goes into the record and affects no decision.
        late: whether events are heard late: then little is drafted at a time. It affects the cost only.
    """

    now: float
    late: bool

    @property
    def finished(self) -> Finish | None:
        """The end of the answer, once it is complete."""
        ...

    def start(self) -> list[Command]:
        """The first commands."""
        ...

    def drafted(self, draft: int, token: Token) -> list[Command]:
        """React to a token of a draft."""
        ...

    def draft_ended(self, draft: int, end: DraftEnd) -> list[Command]:
        """React to the end of a draft."""
        ...

    def draft_failed(self, draft: int, error: Exception) -> list[Command]:
        """React to the failure of a draft."""
        ...

    def answered(self, ask: int, proposals: Sequence[Proposal | None]) -> list[Command]:
        """React to an assistant's answer; `proposals` are in the order of the questions, None if it has no answer."""
        ...

    def ask_failed(self, ask: int, error: Exception) -> list[Command]:
        """React to the failure of a request to an assistant."""
        ...

    def watched(self, watch: int, token: Token) -> list[Command]:
        """React to a token of a watch."""
        ...

    def watch_ended(self, watch: int, end: DraftEnd) -> list[Command]:
        """React to the end of a watch."""
        ...

    def watch_failed(self, watch: int, error: Exception) -> list[Command]:
        """React to the failure of a watch."""
        ...

    def stop_here(self, finish: Finish) -> None:
        """End the answer with its emitted tokens, unless it is complete."""
        ...

    def report(self) -> Report:
        """The answer so far."""
        ...
