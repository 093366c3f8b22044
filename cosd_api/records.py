"""The records of which a fused answer consists: tokens, decisions, requests, usage and endpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from cosd_api.alignment import Decision
from cosd_api.decoding.commands import DecidedSegment, Placed
from cosd_api.decoding.timeline import Outcome, RequestKind, RequestSpan
from cosd_api.verification import Place, Verifier, needs_of, verifier_at
from cosd_providers.contract import ServerInfo, Token
from cosd_providers.text import readable
from cosd_providers.usage import Usage

DRAFT = "draft"
"""The draft's name among the endpoints of a fusion."""

Probability = Annotated[float, Field(ge=0, le=1)]
_HEXADECIMAL = r"^([0-9a-f]{2})*$"
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Measure = Annotated[
    float,
    Field(ge=0, allow_inf_nan=True),
    PlainSerializer(lambda value: value if math.isfinite(value) else "Infinity", float | str, when_used="json"),
]
"""A number such as a perplexity, which is infinite for a text of probability 0."""


class Record(BaseModel):
    """Base class of records, which a round trip through JSON leaves unchanged."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", protected_namespaces=(), defer_build=True)


_R = TypeVar("_R", bound=Record)


def _slim(record: _R) -> _R:
    """Let all records of a class share one set of field names.

    Pydantic gives each record its own set, which would take more memory than the rest of the record.
    """
    object.__setattr__(record, "__pydantic_fields_set__", _all_fields(type(record)))
    return record


@cache
def _all_fields(kind: type[Record]) -> set[str]:
    return {*kind.model_fields}


class TokenDecision(Record):
    """One assistant's answer at the place of a fused token, and the verifier's decision about that answer.

    Attributes:
        assistant: name of the assistant.
        text: the assistant's text at this place; empty for the end of sequence.
        prob: the assistant's probability, in [0, 1], for the least probable token of its own text; None if it is not
            reported.
        agreed: whether the assistant wrote the same text as the draft, or finds the draft's token about as probable as
            its own (`tied`).
        fired: whether the assistant's text differs from the draft's and the verifier chose the assistant's text. If
            several decisions fire, the text of the most confident assistant replaces the draft's; the token's `source`
            names this assistant.
        reason: the decision in words, such as `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`.
        draft_text: the draft's text at this place, which was judged as a whole.
        draft_prob: the draft's probability for the least probable token of its own text.
        coin: the number on which the verifier based its decision, if it uses one: the random number of `RandomVerifier`
            at this place, or the probability of deferral of `DeferralVerifier` and `CoLLMVerifier`.
        draft_text_prob: the assistant's probability for the draft's text, or an upper bound on it, if a verifier such
            as `SurpriseVerifier` uses it.
        strategy: the strategy with which the assistant was asked (`"list"`, `"echo"`, ...), if its provider reports it.
        request: the `number` of the question in `FusionResult.requests`.
        tied: whether the draft's token is the assistant's second choice, with a log probability within `settings.tie`
            of the first choice's.
    """

    assistant: str
    text: str
    prob: Probability | None
    agreed: bool
    fired: bool
    reason: str
    draft_text: str = ""
    draft_prob: Probability | None = None
    coin: Probability | None = None
    draft_text_prob: Probability | None = None
    strategy: str | None = None
    request: int | None = None
    tied: bool = False

    @classmethod
    def of(cls, decision: Decision, names: Sequence[str], verifier: Verifier) -> Self:
        """Make the record of a decision; `names` are the names of the assistants."""
        if decision.tied:
            reason = "a tie: the assistant finds both as probable"
        elif decision.agreed:
            reason = "both agree"
        elif decision.p is None or (decision.q is None and needs_of(verifier).q):
            reason = "kept: a probability is not known"
        else:
            here = verifier_at(verifier, Place(coin=decision.coin, draft_q=decision.draft_q))
            reason = here.explain(decision.p, math.nan if decision.q is None else decision.q)
        return _slim(
            cls(
                assistant=names[decision.assistant],
                text=readable(decision.text),
                prob=decision.q,
                agreed=decision.agreed,
                fired=decision.fired,
                reason=reason,
                draft_text=readable(decision.draft),
                draft_prob=decision.p,
                coin=decision.coin,
                draft_text_prob=decision.draft_q,
                strategy=decision.strategy,
                request=decision.ask,
                tied=decision.tied,
            )
        )


class ListedToken(Record):
    r"""A token that a model listed as an alternative to its own token in the answer.

    Attributes:
        text: text of the token; empty for the end of sequence. A byte that is not valid UTF-8 appears as an escape such
            as `\xff`.
        prob: the same model's probability for the token, in [0, 1].
        end: whether the token is the end of sequence.
        raw: the token's bytes in hexadecimal, if they are not valid UTF-8; otherwise None.
    """

    text: str
    prob: Probability | None
    end: bool = False
    raw: Annotated[str, Field(pattern=_HEXADECIMAL)] | None = None

    @property
    def data(self) -> bytes:
        """The bytes of the token."""
        return data_of(self.text, self.raw)

    @classmethod
    def of(cls, token: Token) -> Self:
        """Make the record of a token."""
        return _slim(cls(text=readable(token.data), prob=token.prob, end=token.end, raw=unreadable(token.data)))


class DraftToken(ListedToken):
    """A draft token that an assistant's word replaced; `prob` is the draft's probability."""


class FusedToken(Record):
    r"""One token of the answer.

    Attributes:
        text: text of the token; empty for the end of sequence. A byte that is not valid UTF-8 appears as an escape such
            as `\xff`. If the models were sent ids (see `settings.contexts`), a token that is part of a character has no
            text, and the token that completes the character contains the whole character. Therefore the texts of all
            tokens join to the answer.
        source: `"draft"`, or the name of the assistant that wrote the token.
        end: whether the token is the end of sequence.
        draft_prob: the draft's probability for this token, in [0, 1]. For a replacement, the draft's probability for
            the least probable token that was replaced.
        assistant_prob: the assistant's probability for its own text at this place. With several assistants, it is the
            probability of the most confident one. None if no assistant was asked or none reported a probability.
        replaced: on the first token of a replacement, the draft's text that was replaced; otherwise None.
        asked: whether an assistant was asked about the token. No assistant is asked if its answer could not change the
            text.
        verified: whether the answers of all assistants that could have changed the token were known. This is False only
            in an answer that continued without a failed model (`on_assistant_error`, `on_draft_error`).
        alone: whether an assistant wrote the token alone, because the draft had failed (`on_draft_error="assistant"`).
        reason: the decision in words; None if no assistant was asked.
        decisions: the decisions about the assistants that were asked. An assistant has no decision if it gave no
            answer, if its token extends beyond the unit (the next unit then judges it), or if its answer could no
            longer matter.
        replaced_tokens: on the first token of a replacement, the draft's tokens that were replaced.
        unit: number of the token's unit or segment in the answer, counted from 0.
        round: number of the token's drafting round, counted from 1; `FusionResult.iterations` is the number of rounds.
        draft: the `number` (in `FusionResult.requests`) of the draft that wrote the token, or the text that the token
            replaced.
        placed_at: seconds from the start of the answer until the token was placed.
        final_at: seconds from the start of the answer until the token was final.
        raw: the token's bytes in hexadecimal, if `text` does not show them.
        id: the token's id, if the draft was sent ids.
        alternatives: other tokens that the model in `source` listed at this place, up to the requested number
            (`alternatives=`). The most probable token comes first.
    """

    text: str
    source: str
    end: bool = False
    draft_prob: Probability | None = None
    assistant_prob: Probability | None = None
    replaced: str | None = None
    asked: bool = False
    verified: bool = True
    alone: bool = False
    reason: str | None = None
    decisions: tuple[TokenDecision, ...] = ()
    replaced_tokens: tuple[DraftToken, ...] = ()
    unit: int = 0
    round: int = 1
    draft: int | None = None
    placed_at: Seconds | None = None
    final_at: Seconds | None = None
    raw: Annotated[str, Field(pattern=_HEXADECIMAL)] | None = None
    id: int | None = None
    alternatives: tuple[ListedToken, ...] = ()

    @property
    def data(self) -> bytes:
        """The bytes of the token."""
        return data_of(self.text, self.raw)

    @classmethod
    def of(
        cls,
        placed: Placed,
        names: Sequence[str],
        verifier: Verifier,
        *,
        now: float,
        characters: str | None = None,
        alternatives: int = 0,
    ) -> Self:
        """Make the record of a token that the decoder placed.

        Args:
            placed: the token.
            names: names of the assistants.
            verifier: the verifier, which words the reasons of the decisions.
            now: seconds from the start of the answer until the token was final.
            characters: the characters that the token completes, if the models were sent ids; else None.
            alternatives: maximum number of other tokens to list.
        """
        data = placed.token.data
        raw = unreadable(data) if characters is None else None if characters.encode() == data else data.hex()
        decisions = tuple([TokenDecision.of(decision, names, verifier) for decision in placed.decisions])
        deciding = None
        if placed.winner is not None:
            deciding = decisions[placed.decisions.index(placed.winner)]
        elif decisions:
            deciding = max(decisions, key=lambda decision: decision.prob or 0.0)
        mine = placed.source < 0
        return _slim(
            cls(
                text=readable(data) if characters is None else characters,
                source=DRAFT if mine else names[placed.source],
                end=placed.token.end,
                draft_prob=placed.token.prob if mine else placed.winner.p if placed.winner is not None else None,
                assistant_prob=(deciding.prob if deciding else None) if mine else placed.token.prob,
                replaced=readable(b"".join(token.data for token in placed.replaced)) if placed.replaced else None,
                asked=placed.asked,
                verified=placed.verified,
                alone=placed.alone,
                reason=placed.reason or (deciding.reason if deciding else _no_decision(placed)),
                decisions=decisions,
                replaced_tokens=tuple([DraftToken.of(token) for token in placed.replaced]),
                unit=placed.unit,
                round=placed.round,
                draft=placed.draft,
                placed_at=placed.at,
                final_at=now,
                raw=raw,
                id=None if characters is None else placed.token.id,
                alternatives=tuple([ListedToken.of(one) for one in placed.token.alternatives[:alternatives]]),
            )
        )


def unreadable(data: bytes) -> str | None:
    """The bytes in hexadecimal; None if they are valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.hex()
    return None


def data_of(text: str, raw: str | None) -> bytes:
    """The bytes of a recorded token, from its hexadecimal `raw` if it has one, else from its text."""
    return text.encode() if raw is None else bytes.fromhex(raw)


def _no_decision(placed: Placed) -> str | None:
    if not placed.verified:
        return "kept: an assistant that had failed could not be heard"
    return "kept: nothing to judge" if placed.asked else None


class Seam(Record):
    """A place in an answer at which another model began to write alone, or the draft returned.

    Attributes:
        token: index of the first token after the seam.
        source: the model that writes from there on: an assistant, which writes alone, or `"draft"`, which is judged
            again.
        error: the class name of the error of the model before it; None if the draft returned.
    """

    token: int
    source: str
    error: str | None = None


class SegmentCandidate(Record):
    """A text that was proposed for a segment.

    Attributes:
        sources: names of the models that proposed the text, in the order in which the user gave the models.
        text: the proposed text. If the method chooses a model before any model writes, the text is empty for the models
            that were not chosen.
        end: whether the answer ends after the text.
        scores: each model's measure of the text, such as a perplexity; None if the model was not asked or cannot
            measure the text.
        mean: the mean of the scores, or another number by which the candidates are compared; the candidate with the
            lowest number wins. None if nothing was measured.
    """

    sources: tuple[str, ...]
    text: str
    end: bool = False
    scores: dict[str, Measure | None] = Field(default_factory=dict[str, Measure | None])
    mean: Measure | None = None


class Segment(Record):
    """One segment of an answer, for methods that decide segment by segment.

    Attributes:
        candidates: the proposed texts.
        winner: index of the chosen candidate.
        reason: reason for the choice, in words.
    """

    candidates: tuple[SegmentCandidate, ...]
    winner: int
    reason: str

    @classmethod
    def of(cls, segment: DecidedSegment, names: Sequence[str]) -> Self:
        """Make the record of a segment; `names` are the names of the models, the draft's first."""
        candidates = tuple(
            SegmentCandidate(
                sources=tuple(names[source + 1] for source in one.sources),
                text=readable(one.text),
                end=one.end,
                scores=dict(zip(names, one.scores, strict=False)),
                mean=one.mean,
            )
            for one in segment.candidates
        )
        return cls(candidates=candidates, winner=segment.winner, reason=segment.reason)


class EndpointUsage(Record):
    """The requests to one endpoint during one answer, and the tokens that the endpoint billed.

    Attributes:
        requests: number of generation requests, without retries.
        retries: number of retries.
        prompt_tokens: number of tokens read, as the server counts them, including cached tokens.
        completion_tokens: number of tokens written.
        cached_tokens: number of prompt tokens that came from the server's cache.
        estimated_tokens: the part of `prompt_tokens` that is an estimate, rather too high than too low, because the
            server did not report it, as when a stream was closed before its end.
        first_token_seconds: seconds from the first request to the first token or the first answer to a question.
        busy_seconds: time during which at least one request was in progress.
        strategies: number of places that an assistant answered, by the strategy with which it was asked, such as
            `{"list": 12}`.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated_tokens: int = 0
    first_token_seconds: Seconds | None = None
    busy_seconds: Seconds = 0.0
    strategies: dict[str, int] = Field(default_factory=dict[str, int])

    @property
    def billed_tokens(self) -> int:
        """The number of tokens read and written."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """Make the record from an endpoint's ledger."""
        return cls.model_validate({name: copy(getattr(usage, name)) for name in cls.model_fields})


class Request(Record):
    """One request of an answer: a draft, or a question to an assistant about one or more places.

    One request may consist of several HTTP requests; `EndpointUsage.requests` counts the HTTP requests.

    Attributes:
        number: number of the request, counted from 1. Drafts have their own series of numbers; questions, watches and
            scores share a second series.
        endpoint: `"draft"`, or the assistant's name.
        kind: `"draft"`; `"hedge"`, only in answers of earlier versions; `"question"`;
            `"watch"`, an assistant's stream that answers each place that it passes; or `"score"`, a request for the
            probability of a text.
        at: byte offset from which the request continues the answer, counted in the answer as it was at that time; for a
            question, the offset of its first place.
        start: seconds from the start of the answer until the request was sent.
        first: seconds from the start of the answer until the request's first token; None for questions, and if no token
            arrived.
        end: seconds from the start of the answer until the request was over.
        tokens: number of tokens that a draft or a watch wrote.
        places: number of places that the request was about, or that a watch answered.
        outcome: result of the request. It is `"cancelled"` if the request could no longer matter, such as a draft after
            a replacement.
    """

    number: int
    endpoint: str
    kind: RequestKind
    at: int
    start: Seconds
    first: Seconds | None
    end: Seconds
    tokens: int = 0
    places: int = 0
    outcome: Outcome

    @classmethod
    def of(cls, span: RequestSpan, names: Sequence[str]) -> Self:
        """Make the record of a span; `names` are the names of all endpoints, the draft's first."""
        return _slim(
            cls(
                number=span.number,
                endpoint=names[span.who],
                kind=span.kind,
                at=span.at,
                start=span.start,
                first=span.first,
                end=span.start if span.end is None else span.end,
                tokens=span.tokens,
                places=span.places,
                outcome=span.outcome,
            )
        )


class Endpoint(Record):
    """One model on one server, as it described itself when the answer was made.

    `engine` and `model` are `"unknown"` for an assistant that was down (`on_assistant_error="draft"`).
    """

    name: str
    endpoint: str
    engine: str
    model: str
    build: str | None = None
    context: int | None = None

    @classmethod
    def of(cls, name: str, info: ServerInfo) -> Self:
        """Make the record of an endpoint from its provider's description."""
        fields = cls.model_fields.keys() - {"name"}
        return cls(name=name, **{field: getattr(info, field) for field in fields})


class Timings(Record):
    """The times of an answer, in seconds.

    Attributes:
        total: time from the start to the end of the answer.
        first_token: time until the first token was final; None if the answer has no token.
        per_token: mean time per token, without `discovery`; None if the answer has no token.
        discovery: the part of `total` in which the servers were discovered. Usually only the first answer of a `Fusion`
            waits for the discovery.
    """

    total: Seconds
    first_token: Seconds | None
    per_token: Seconds | None
    discovery: Seconds = 0.0
