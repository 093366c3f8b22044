"""Answers of a comparison, as records: text, grade, bill, and the places that were replaced."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import Annotated, Literal, Self

from pydantic import Field

from cosd_api.comparison.prices import Price
from cosd_api.records import DRAFT, EndpointUsage, FusedToken, Probability, Record, Seconds, unreadable
from cosd_api.result import FusionResult
from cosd_providers.text import readable

__all__ = ["AnswerUsage", "GradedAnswer", "ReplacedPlace"]

_Hexadecimal = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]


class ReplacedPlace(Record):
    """A place of an answer where the assistant's word replaced the draft's.

    Attributes:
        start: byte offset in the answer.
        draft: the draft's text there; empty for its end of sequence.
        fused: the text that replaced it.
        draft_prob: the draft's probability of its own, in [0, 1]; None if not reported.
        prob: the assistant's of its own.
        draft_raw: bytes of the draft's text in hexadecimal, where they are no characters.
        fused_raw: bytes of the other text, likewise.
        word: whether the text that replaced is a whole word; the draft's may be the beginning of one.
    """

    start: int
    draft: str
    fused: str
    draft_prob: Probability | None = None
    prob: Probability | None = None
    draft_raw: _Hexadecimal | None = None
    fused_raw: _Hexadecimal | None = None
    word: bool = False

    @property
    def draft_data(self) -> bytes:
        """The draft's text as bytes."""
        return self.draft.encode() if self.draft_raw is None else bytes.fromhex(self.draft_raw)

    @property
    def fused_data(self) -> bytes:
        """The text that replaced it as bytes."""
        return self.fused.encode() if self.fused_raw is None else bytes.fromhex(self.fused_raw)


class AnswerUsage(Record):
    """The part of one endpoint in the cost of an answer.

    Attributes:
        requests: generation requests and scores.
        read: tokens read, cached ones included.
        written: tokens written.
        cached: those of the tokens read that came from the server's cache, as far as it reports them.
    """

    requests: int = 0
    read: int = 0
    written: int = 0
    cached: int = 0

    @property
    def billed(self) -> int:
        """Tokens read and written."""
        return self.read + self.written

    @classmethod
    def of(cls, usage: EndpointUsage) -> Self:
        """The same, of a result's usage."""
        read, written, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        return cls(requests=usage.requests, read=read, written=written, cached=cached)


class GradedAnswer(Record):
    """One question answered by one contestant: a line of the journal.

    Attributes:
        type: `"answer"`; `"failed"`, for a question that an endpoint or the grader failed at, which is asked again;
            `"cut"`, for an answer that ended at the limit of the whole comparison, likewise.
        key: identity of the text: contestant, models, limits and prompt.
        graded: identity of the grading: the example and the grader.
        contestant: its name.
        question: `Example.key`.
        text: the answer.
        right: whether it is right; None if it was not graded.
        seconds: its duration, without what finding out about the servers took.
        first_token: seconds until its first token was final; None without one.
        tokens: number of tokens.
        usage: by `"draft"` and `"assistant"` (or `"assistant 1"` and so on), as the user gave them, whoever drafted.
        finish_reason: see `FusionResult`.
        stop_reason: likewise.
        acceptance: draft tokens kept / (kept + replaced); None where no draft is judged.
        units: number of units that were judged or could have been; None likewise.
        asked: those of them that an assistant was asked about.
        differing: those of them where one answered otherwise.
        replaced: those of them where the answer of one stands.
        confidence: the mean probability of the tokens, in [0, 1]; None where one is not reported.
        least: the least probability of a token.
        error: why it failed.
        warnings: of the answer.
    """

    type: Literal["answer", "failed", "cut"] = "answer"
    key: str
    graded: str
    contestant: str
    question: str
    text: str = ""
    right: bool | None = None
    seconds: Seconds | None = None
    first_token: Seconds | None = None
    tokens: int = 0
    usage: dict[str, AnswerUsage] = Field(default_factory=dict[str, AnswerUsage])
    finish_reason: str | None = None
    stop_reason: str | None = None
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    units: int | None = None
    asked: int | None = None
    differing: int | None = None
    replaced: tuple[ReplacedPlace, ...] = ()
    confidence: Probability | None = None
    least: Probability | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def rounds(self) -> int | None:
        """Number of drafts: one, and one after each replacement that does not end the answer; None without a draft."""
        if self.acceptance is None:
            return None
        last = self.replaced[-1] if self.replaced else None
        ends = last is not None and last.start + len(last.fused_data) >= len(self.text.encode())
        return 1 + len(self.replaced) - ends

    @property
    def billed(self) -> int:
        """Tokens read and written by all endpoints."""
        return sum(one.billed for one in self.usage.values())

    def money(self, prices: Mapping[str, Price] | None) -> float | None:
        """The price of all endpoints' tokens; None without prices."""
        if prices is None:
            return None
        return sum(prices[name].of(one.read, one.written, one.cached) for name, one in self.usage.items())

    @property
    def complete(self) -> bool:
        """True if it was answered and graded."""
        return self.type == "answer" and self.right is not None

    @classmethod
    def of(cls, result: FusionResult, contestant: str, role: Mapping[str, str], **fields: object) -> Self:
        """The line of an answer, not graded yet.

        Args:
            result: the answer.
            contestant: name of the contestant.
            role: for each endpoint of its fusion, which of the user's it is.
            fields: the line's keys.
        """
        timings = result.timings
        usage = {role[name]: AnswerUsage.of(one) for name, one in result.usage.items()}
        seconds = max(0.0, timings.total - timings.discovery)
        first = None if timings.first_token is None else max(0.0, timings.first_token - timings.discovery)
        judged = result.acceptance_rate is not None
        mean, least = _confidence(result.tokens)
        return cls.model_validate(
            {
                "contestant": contestant,
                "text": result.text,
                "seconds": seconds,
                "first_token": first,
                "tokens": len(result.tokens),
                "usage": usage,
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
                "acceptance": result.acceptance_rate,
                **(_judged(result) if judged else {}),
                "confidence": mean,
                "least": least,
                "warnings": result.warnings,
                **fields,
            }
        )


def _judged(result: FusionResult) -> dict[str, object]:
    """Units of an answer whose draft was judged, counted, and the places that were replaced."""
    units: dict[int, list[FusedToken]] = {}
    replaced: list[ReplacedPlace] = []
    start, whole = 0, result.settings.unit == "word"
    for at, token in enumerate(result.tokens):
        units.setdefault(token.unit, []).append(token)
        if token.replaced is not None:
            several = [token, *takewhile(partial(_goes_on, token.source), result.tokens[at + 1 :])]
            fused = b"".join(one.data for one in several)
            draft = b"".join(one.data for one in token.replaced_tokens)
            cut = result.finish_reason == "length" and several[-1] is result.tokens[-1]
            place = ReplacedPlace(
                start=start,
                draft=token.replaced,
                fused=readable(fused),
                draft_prob=token.draft_prob,
                prob=token.assistant_prob,
                draft_raw=unreadable(draft),
                fused_raw=unreadable(fused),
                word=whole and not cut,
            )
            replaced.append(place)
        start += len(token.data)
    by_unit = [*units.values()]
    return {
        "units": len(by_unit),
        "asked": sum(any(one.asked for one in unit) for unit in by_unit),
        "differing": sum(any(not made.agreed for one in unit for made in one.decisions) for unit in by_unit),
        "replaced": tuple(replaced),
    }


def _goes_on(source: str, token: FusedToken) -> bool:
    """Test whether a token belongs to the replacement that this model has begun."""
    return token.source == source and token.replaced is None


def _confidence(tokens: tuple[FusedToken, ...]) -> tuple[float | None, float | None]:
    """The mean and the least of the tokens' probabilities, each that of the model whose token it is."""
    probs = [one.draft_prob if one.source == DRAFT else one.assistant_prob for one in tokens]
    known = [prob for prob in probs if prob is not None]
    if not known or len(known) < len(probs) - (tokens[-1].end and probs[-1] is None):  # some hide that of the end
        return None, None
    return min(1.0, math.fsum(known) / len(known)), min(known)
