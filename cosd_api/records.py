"""What a fused answer is made of: its tokens, what was said about each, what was asked and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.alignment import Decision
from cosd_api.decoding.commands import Placed
from cosd_api.decoding.timeline import Kind, Outcome, Span
from cosd_api.verification import Verifier, needs_q
from cosd_providers.contract import ServerInfo
from cosd_providers.text import readable
from cosd_providers.usage import Usage

Probability = Annotated[float, Field(ge=0, le=1)]
_HEXADECIMAL = r"^([0-9a-f]{2})*$"
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Record(BaseModel):
    """What goes through JSON and back unchanged."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", protected_namespaces=(), defer_build=True)


class TokenDecision(Record):
    """What one assistant said where a fused token stands.

    Attributes:
        assistant: its name.
        text: what it wrote there; empty for its end of sequence.
        prob: its probability of its least sure token there, in [0, 1]; None where the endpoint did not tell.
        agreed: it wrote what the draft wrote.
        fired: it differed, and the verifier would put its word in the draft's place. Of several that fire, the surest
            does: the token's `source`.
        reason: the decision in words, e.g. `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`.
        draft_text: what the draft wrote there: the tokens that were judged together.
        draft_prob: its probability of the least sure of them.
        strategy: in which way the assistant was asked (`"list"`, `"echo"`, ...), where its provider tells.
        request: the `number` of the question among `FusionResult.requests`.
    """

    assistant: str
    text: str
    prob: Probability | None
    agreed: bool
    fired: bool
    reason: str
    draft_text: str = ""
    draft_prob: Probability | None = None
    strategy: str | None = None
    request: int | None = None


class DraftToken(Record):
    """A token of the draft in whose place an assistant's word stands.

    Attributes:
        text: its text; empty for the end of sequence.
        prob: the draft's probability of it, in [0, 1]; None where the endpoint did not tell.
        end: whether it is the end of sequence.
    """

    text: str
    prob: Probability | None
    end: bool = False


class FusedToken(Record):
    r"""One token of the answer.

    Attributes:
        text: its text; empty for the end of sequence. Bytes that are no characters stand as `\xff`.
        source: `"draft"`, or the name of the assistant whose word it is.
        end: whether it is the end of sequence.
        draft_prob: the draft's probability of what it wrote there, in [0, 1]: of this token, or of the tokens that
            this one replaced (the least sure of them).
        assistant_prob: the assistant's probability of what it wrote there; None where none was asked, or it
            does not tell. With several, that of the surest.
        replaced: on the first token of a replacement, the draft's text in whose place it stands.
        asked: whether an assistant was asked about it. One that could not change the answer is not.
        verified: whether every assistant was heard that could have changed it. Only an answer that went on without one
            that had failed (`on_assistant_error="draft"`) has others.
        reason: the decision in words; None where nobody was asked.
        decisions: what each assistant that was asked said there. Empty where it could not answer, where its token
            reaches beyond the unit (it is judged with the next), and where no answer could matter any more.
        replaced_tokens: on the first token of a replacement, the draft's tokens in whose place it stands.
        unit: number of its unit in the answer, from 0.
        round: the drafting round that it belongs to, from 1, as `FusionResult.iterations` counts them.
        draft: the `number` of the draft, among `FusionResult.requests`, that wrote it, or the first of what its word
            replaced.
        placed_at: seconds from the start of the answer until it stood there.
        final_at: until nothing could change it any more.
        raw: its bytes in hexadecimal, where they are no characters.
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

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return self.text.encode() if self.raw is None else bytes.fromhex(self.raw)

    @classmethod
    def of(cls, placed: Placed, names: Sequence[str], verifier: Verifier, *, now: float) -> Self:
        """The public form of a token that the decoder placed, final by `now`; `names` are the assistants'."""
        decisions = tuple(_decision(decision, names, verifier) for decision in placed.decisions)
        deciding = max(decisions, key=lambda decision: decision.prob or 0.0, default=None)
        mine = placed.winner is None
        if placed.winner is not None:
            deciding = decisions[placed.decisions.index(placed.winner)]
        return cls(
            text=readable(placed.token.data),
            source="draft" if mine else names[placed.source],
            end=placed.token.end,
            draft_prob=placed.token.prob if placed.winner is None else placed.winner.p,
            assistant_prob=(deciding.prob if deciding else None) if mine else placed.token.prob,
            replaced=readable(b"".join(token.data for token in placed.replaced)) if placed.replaced else None,
            asked=placed.asked,
            verified=placed.verified,
            reason=deciding.reason if deciding else _no_decision(placed),
            decisions=decisions,
            replaced_tokens=tuple(
                DraftToken(text=readable(one.data), prob=one.prob, end=one.end) for one in placed.replaced
            ),
            unit=placed.unit,
            round=placed.round,
            draft=placed.draft,
            placed_at=placed.at,
            final_at=now,
            raw=_unreadable(placed.token.data),
        )


def _unreadable(data: bytes) -> str | None:
    """Bytes in hexadecimal, unless they are a text that can be written as it is."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.hex()
    return None


def _no_decision(placed: Placed) -> str | None:
    if not placed.verified:
        return "kept: an assistant that had failed could not be heard"
    return "kept: nothing to judge" if placed.asked else None


def _decision(decision: Decision, names: Sequence[str], verifier: Verifier) -> TokenDecision:
    if decision.agreed:
        reason = "both agree"
    elif decision.p is None or (decision.q is None and needs_q(verifier)):
        reason = "kept: a probability is not known"
    else:
        reason = verifier.explain(decision.p, math.nan if decision.q is None else decision.q)
    return TokenDecision(
        assistant=names[decision.assistant],
        text=readable(decision.text),
        prob=decision.q,
        agreed=decision.agreed,
        fired=decision.fired,
        reason=reason,
        draft_text=readable(decision.draft),
        draft_prob=decision.p,
        strategy=decision.strategy,
        request=decision.ask,
    )


class EndpointUsage(Record):
    """What was sent to one endpoint during one fusion, and billed.

    Attributes:
        requests: generation requests sent.
        retries: requests sent again.
        prompt_tokens: tokens read, cached ones included, as the server counts them.
        completion_tokens: tokens written.
        cached_tokens: prompt tokens that came from the server's cache.
        first_token_seconds: from the first request to its first token or answer.
        busy_seconds: time during which at least one request was under way.
        strategies: how many places an assistant answered in which way, e.g. `{"list": 12}`.
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
        """The public form of a ledger."""
        return cls.model_validate({name: copy(getattr(usage, name)) for name in cls.model_fields})


class Request(Record):
    """One request of an answer: a draft, or a question to an assistant about one or many places.

    It may be several at the level of HTTP: `EndpointUsage.requests` counts those.

    Attributes:
        number: drafts are counted from 1, and so are questions.
        endpoint: `"draft"`, or the assistant's name.
        kind: `"draft"`; `"hedge"`, a draft that was started ahead of a verdict; or `"question"`.
        at: byte offset in the answer, as it stood then, from which it goes on; of a question, of its first place.
        start: seconds from the start of the answer until it was begun.
        first: until its first token came; None for questions, and where none came.
        end: until it was over.
        tokens: drafted by it.
        places: asked about by it.
        outcome: `"cancelled"` is what could not matter any more, such as a draft behind a replacement.
    """

    number: int
    endpoint: str
    kind: Kind
    at: int
    start: Seconds
    first: Seconds | None
    end: Seconds
    tokens: int = 0
    places: int = 0
    outcome: Outcome

    @classmethod
    def of(cls, span: Span, names: Sequence[str]) -> Self:
        """The public form; `names` are those of all endpoints, the draft's first."""
        end = span.start if span.end is None else span.end
        fields = ("number", "kind", "at", "start", "first", "tokens", "places", "outcome")
        return cls(endpoint=names[span.who], end=end, **{name: getattr(span, name) for name in fields})


class Endpoint(Record):
    """One model behind one server, as it was when the answer was made.

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
        """The public form of what a provider tells."""
        fields = cls.model_fields.keys() - {"name"}
        return cls(name=name, **{field: getattr(info, field) for field in fields})


class Timings(Record):
    """Seconds: in all, until the first fused token was final (None without one), and in all per token."""

    total: Seconds
    first_token: Seconds | None
    per_token: Seconds | None
