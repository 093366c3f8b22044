"""The parts of a fused answer as records: tokens, decisions, requests, usage, endpoints."""

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
"""A perplexity, say; infinite for a text of probability 0."""


class Record(BaseModel):
    """A record that goes through JSON and back unchanged."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", protected_namespaces=(), defer_build=True)


_R = TypeVar("_R", bound=Record)


def _slim(record: _R) -> _R:
    """A record with all fields given, which shares the set of their names with all records of its kind.

    A set of its own would take more memory than the rest of the record.
    """
    object.__setattr__(record, "__pydantic_fields_set__", _all_fields(type(record)))
    return record


@cache
def _all_fields(kind: type[Record]) -> set[str]:
    return {*kind.model_fields}


class TokenDecision(Record):
    """One assistant's answer about the place of a fused token, and the decision on it.

    Attributes:
        assistant: its name.
        text: its text there; empty for its end of sequence.
        prob: its probability of its least probable token there, in [0, 1]; None if not reported.
        agreed: whether it wrote the draft's text, or finds both as probable (`tied`).
        fired: whether it differed and the verifier replaces. If several decisions fire, the most confident assistant
            replaces: the token's `source`.
        reason: the decision in words, e.g. `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`.
        draft_text: the draft's text there: the tokens that were judged together.
        draft_prob: the draft's probability of the least probable of them.
        coin: the number by which a verifier such as `RandomVerifier` decided: its coin there, or the probability of
            deferral by `DeferralVerifier` and `CoLLMVerifier`.
        draft_text_prob: the assistant's probability of the draft's text, or its upper bound, if a verifier such as
            `SurpriseVerifier` uses it.
        strategy: the way in which the assistant was asked (`"list"`, `"echo"`, ...), if its provider reports it.
        request: the `number` of the question among `FusionResult.requests`.
        tied: whether the draft's token is its second choice, as probable as its own within `settings.tie`.
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
        """The record of a decision; `names` are the assistants'."""
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
    r"""Another token that the author of a token of the answer listed in the same place.

    Attributes:
        text: its text; empty for the end of sequence. Bytes that are no characters stand as `\xff`.
        prob: its probability in [0, 1], by the same model.
        end: whether it is the end of sequence.
        raw: its bytes in hexadecimal, if they are no characters.
    """

    text: str
    prob: Probability | None
    end: bool = False
    raw: Annotated[str, Field(pattern=_HEXADECIMAL)] | None = None

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return data_of(self.text, self.raw)

    @classmethod
    def of(cls, token: Token) -> Self:
        """The record of a token."""
        return _slim(cls(text=readable(token.data), prob=token.prob, end=token.end, raw=unreadable(token.data)))


class DraftToken(ListedToken):
    """A draft token that an assistant's word replaced, with the draft's probability of it."""


class FusedToken(Record):
    r"""One token of the answer.

    Attributes:
        text: its text; empty for the end of sequence. Bytes that are no characters are written as `\xff`. If models
            were asked after ids (`settings.contexts`), the characters that it completes: empty for a part of a
            character, and the whole character on the part that ends it, so that the texts join to the answer.
        source: `"draft"`, or the name of the assistant whose word it is.
        end: whether it is the end of sequence.
        draft_prob: the draft's probability in [0, 1] of this token, or of the tokens that it replaced (the
            least probable of them).
        assistant_prob: the assistant's probability of its text there; None if no assistant was asked or the probability
            is not reported. With several assistants, the most confident assistant's.
        replaced: on the first token of a replacement, the draft's text that it replaced.
        asked: whether an assistant was asked about it; none is asked if no answer could change the text.
        verified: whether every assistant that could have changed it was heard. It is False only in an answer that
            continued without a failed assistant (`on_assistant_error="draft"`).
        reason: the decision in words; None if no assistant was asked.
        decisions: one for each assistant that was asked. An assistant's decision is missing if it had no answer, if its
            token reaches beyond the unit (it is judged with the next), or if its answer could no longer matter.
        replaced_tokens: on the first token of a replacement, the draft's tokens that it replaced.
        unit: number of its unit in the answer, or of its segment, from 0.
        round: the drafting round that it belongs to, from 1, as `FusionResult.iterations` counts them.
        draft: the `number`, among `FusionResult.requests`, of the draft that wrote it or the text it replaced.
        placed_at: seconds from the start of the answer until it was placed there.
        final_at: seconds until it was final.
        raw: its bytes in hexadecimal, if `text` does not show them.
        id: its id, if the draft was asked after ids.
        alternatives: other tokens in its place, by the model whose word it is (`source`), the most probable first; as
            many as were requested (`alternatives=`) and listed.
    """

    text: str
    source: str
    end: bool = False
    draft_prob: Probability | None = None
    assistant_prob: Probability | None = None
    replaced: str | None = None
    asked: bool = False
    verified: bool = True
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
        """Its bytes."""
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
        """The record of a token that the decoder placed, final by `now`; `names` are the assistants'.

        `characters`: the characters that a token by id completes; None for a token of whole characters. `alternatives`
        is the number of other tokens to list with it, at most.
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
    """Bytes in hexadecimal, unless they are valid text."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.hex()
    return None


def data_of(text: str, raw: str | None) -> bytes:
    """The bytes of a record's text: the hexadecimal bytes, if it has some."""
    return text.encode() if raw is None else bytes.fromhex(raw)


def _no_decision(placed: Placed) -> str | None:
    if not placed.verified:
        return "kept: an assistant that had failed could not be heard"
    return "kept: nothing to judge" if placed.asked else None


class SegmentCandidate(Record):
    """A text that was proposed for a segment.

    Attributes:
        sources: the names of the models that proposed it, in the order given.
        text: the text; empty for a model that was not chosen, by a method that chooses before any model writes.
        end: whether the answer ends after it.
        scores: by model: its measure of the text, such as the perplexity; None if it was not asked or cannot give one.
        mean: the mean of the scores, or another number by which the candidates are compared: the least is taken. None
            if nothing was measured.
    """

    sources: tuple[str, ...]
    text: str
    end: bool = False
    scores: dict[str, Measure | None] = Field(default_factory=dict[str, Measure | None])
    mean: Measure | None = None


class Segment(Record):
    """One segment of an answer, of a method that decides segment by segment.

    Attributes:
        candidates: the texts that were proposed.
        winner: index of the candidate that was taken.
        reason: why, in words.
    """

    candidates: tuple[SegmentCandidate, ...]
    winner: int
    reason: str

    @classmethod
    def of(cls, segment: DecidedSegment, names: Sequence[str]) -> Self:
        """The record of a segment; `names` are the models', the draft's first."""
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
    """Requests to one endpoint during one answer, and the tokens that it billed.

    Attributes:
        requests: generation requests sent.
        retries: requests repeated.
        prompt_tokens: tokens read, cached ones included, as the server counts them.
        completion_tokens: tokens written.
        cached_tokens: prompt tokens that came from the server's cache.
        first_token_seconds: from the first request to its first token or answer.
        busy_seconds: time during which at least one request was in progress.
        strategies: places that an assistant answered, by the way in which it was asked, e.g. `{"list": 12}`.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token_seconds: Seconds | None = None
    busy_seconds: Seconds = 0.0
    strategies: dict[str, int] = Field(default_factory=dict[str, int])

    @property
    def billed_tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """The record of a ledger."""
        return cls.model_validate({name: copy(getattr(usage, name)) for name in cls.model_fields})


class Request(Record):
    """One request of an answer: a draft, or a question to an assistant about one or many places.

    It may be several HTTP requests: `EndpointUsage.requests` counts these.

    Attributes:
        number: drafts are counted from 1, and so are questions, watches and scores together.
        endpoint: `"draft"`, or the assistant's name.
        kind: `"draft"`; `"hedge"`, a draft that was started ahead of a verdict; `"question"`; `"watch"`, a stream of an
            assistant that answers each place that it passes; or `"score"`, a request for the probability of a text.
        at: byte offset in the answer, at that time, which it continues; for a question, its first place.
        start: seconds from the start of the answer until it was sent.
        first: seconds until its first token; None for questions, and if none came.
        end: seconds until it was over.
        tokens: tokens that it wrote, of a draft or a watch.
        places: number of places that it asked about, or answered.
        outcome: `"cancelled"` if it could no longer matter, such as a draft after a replacement.
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
        """The record of a span; `names`: of all endpoints, the draft's first."""
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
    """One model of one server, as it was when the answer was made.

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
        """The record of a provider's description of itself."""
        fields = cls.model_fields.keys() - {"name"}
        return cls(name=name, **{field: getattr(info, field) for field in fields})


class Timings(Record):
    """The times of an answer, in seconds.

    Attributes:
        total: from its start to its end.
        first_token: until its first token was final; None without one.
        per_token: per token, without `discovery`; None without tokens.
        discovery: the part of `total` in which the servers described themselves. Only the first answer of a `Fusion`
            waits for that.
    """

    total: Seconds
    first_token: Seconds | None
    per_token: Seconds | None
    discovery: Seconds = 0.0
