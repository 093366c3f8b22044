"""What comes out of a fusion: the text, where each token of it comes from, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field

from cosd_api.alignment import Decision, Unit
from cosd_api.decoding.commands import FinishReason, Placed
from cosd_api.verification import AgreementVerifier, RuleVerifier, TreeVerifier, Verifier, needs_q
from cosd_api.version import __version__
from cosd_providers.contract import ServerInfo, Usage
from cosd_providers.text import readable


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", protected_namespaces=())


class TokenDecision(_Model):
    """What one assistant said where a fused token stands.

    Attributes:
        assistant: its name.
        text: what it wrote there; empty for its end of sequence.
        prob: its probability of its least sure token there, in [0, 1]; None where the endpoint did not tell.
        agreed: it wrote what the draft wrote.
        fired: it differed, and the verifier would put its word in the draft's place. Of several that fire, the surest
            does: the token's `source`.
        reason: the decision in words, e.g. `"0.31 < 0.5 and 0.72 > 0.5 x 0.31"`.
    """

    assistant: str
    text: str
    prob: float | None
    agreed: bool
    fired: bool
    reason: str


class FusedToken(_Model):
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
    """

    text: str
    source: str
    end: bool = False
    draft_prob: float | None = None
    assistant_prob: float | None = None
    replaced: str | None = None
    asked: bool = False
    verified: bool = True
    reason: str | None = None
    decisions: tuple[TokenDecision, ...] = ()

    @classmethod
    def of(cls, placed: Placed, names: Sequence[str], verifier: Verifier) -> Self:
        """The public form of a token that the decoder placed; `names` are the assistants'."""
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
        )


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
        reason = verifier.words(decision.p, math.nan if decision.q is None else decision.q)
    return TokenDecision(
        assistant=names[decision.assistant],
        text=readable(decision.text),
        prob=decision.q,
        agreed=decision.agreed,
        fired=decision.fired,
        reason=reason,
    )


class EndpointUsage(_Model):
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
    first_token_seconds: float | None = None
    busy_seconds: float = 0.0
    strategies: dict[str, int] = Field(default_factory=dict[str, int])

    @property
    def billed_tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """The public form of a ledger."""
        return cls.model_validate({name: copy(getattr(usage, name)) for name in cls.model_fields})


class Endpoint(_Model):
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


class CustomVerifier(_Model):
    """Stands in a result for a verifier of the user's own."""

    kind: Literal["custom"] = "custom"
    description: str


KnownVerifier = RuleVerifier | TreeVerifier | AgreementVerifier


def describe_verifier(verifier: Verifier) -> KnownVerifier | CustomVerifier:
    """The verifier as a result can hold it."""
    if isinstance(verifier, KnownVerifier) and type(verifier) in get_args(KnownVerifier):  # a subclass may differ
        return verifier
    return CustomVerifier(description=f"{type(verifier).__module__}.{type(verifier).__qualname__}")


class Settings(_Model):
    """How the answer was made: with the prompt and the same endpoints, enough to repeat it."""

    verifier: Annotated[RuleVerifier | TreeVerifier | AgreementVerifier | CustomVerifier, Field(discriminator="kind")]
    unit: Unit
    max_tokens: int
    stop: tuple[str, ...] = ()
    draft_length: int | None = None
    max_ahead: int | None = None
    hedge: int = 0
    in_flight: int = 1
    batch_wait: float = 0.0
    ask: Literal["contestable", "all"] = "contestable"
    on_assistant_error: Literal["raise", "draft"] = "raise"
    on_special_tokens: Literal["warn", "refuse"] = "warn"
    timeout: float | None = None
    max_requests: int | None = None
    max_billed_tokens: int | None = None
    on_budget: Literal["raise", "end"] = "raise"


class Timings(_Model):
    """Seconds: in all, until the first fused token was final (None without one), and in all per token."""

    total: float
    first_token: float | None
    per_token: float | None


class FusionResult(_Model):
    """A fused answer. `model_dump_json` and `model_validate_json` take it there and back.

    Attributes:
        schema_version: of this form; see the changelog.
        text: the answer.
        finish_reason: `"stop"` (end of sequence or a stop string), `"length"`, `"content_filter"`, `"budget"` (a limit
            of the caller's own), or `"error"` (only in what an error holds as its `partial`).
        stop_reason: which: the end token, the stop string, `"max_tokens"`, `"context"`, `"max_requests"`, the error's
            name, ...
        tokens: the answer, token by token; their texts together are `text`, but for a character of which two models
            wrote a part each.
        acceptance_rate: draft tokens kept / (kept + replaced), tokens that nobody needed to ask about counting as
            kept: the paper's proportion of draft tokens that were not replaced. 1.0 for an empty answer.
        replacements: how often an assistant's word was taken.
        iterations: drafting rounds that the text took: one, plus the replacements (and losses of an assistant) after
            which drafting went on.
        kept_tokens: draft tokens in the answer.
        replaced_tokens: draft tokens in whose place an assistant's word stands.
        drafted_tokens: tokens that the draft wrote in all, those thrown away included. Depends on timing.
        hedged_drafts: drafts that were started ahead of a verdict (`hedge`). Depends on timing, as the next two do.
        hedge_hits: how many of them the draft went on as. Together with those that it was begun anew,
            `draft_requests - hedged_drafts - 1`, they are what could have been hits.
        hedged_tokens: tokens of `drafted_tokens` that they wrote before their verdict, most of them thrown away.
        draft_requests: drafts that were started, those ahead included. Depends on timing.
        assistant_requests: questions sent to assistants, each about one or many places. Depends on timing.
        usage: per endpoint, by name: `"draft"`, `"assistant"` (or `"assistant 1"`, `"assistant 2"`, ...).
        timings: in seconds.
        warnings: what a reader of the answer should know, in words.
        draft: the draft endpoint.
        assistants: the assistants, in the order given.
        settings: verifier, unit, limits.
        library_version: of cosd-api.
    """

    schema_version: Literal[1] = 1
    text: str
    finish_reason: FinishReason
    stop_reason: str
    tokens: tuple[FusedToken, ...]
    acceptance_rate: float
    replacements: int
    iterations: int
    kept_tokens: int
    replaced_tokens: int
    drafted_tokens: int
    hedged_drafts: int = 0
    hedge_hits: int = 0
    hedged_tokens: int = 0
    draft_requests: int
    assistant_requests: int
    usage: dict[str, EndpointUsage]
    timings: Timings
    warnings: tuple[str, ...] = ()
    draft: Endpoint
    assistants: tuple[Endpoint, ...]
    settings: Settings
    library_version: str = __version__

    def __str__(self) -> str:
        return self.text

    def __rich_repr__(self) -> Any:
        yield "text", self.text
        yield "finish_reason", self.finish_reason
        yield "acceptance_rate", round(self.acceptance_rate, 3)
        yield "replacements", self.replacements
