"""Answers of a comparison, and the journal from which a run resumes, with one line for each answer and each grade."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from cosd_api import Example, FusionResult, SettingError, __version__
from cosd_api.comparison.prices import Price
from cosd_api.extend import DRAFT, Probability, Record, Seconds, data_of, readable, unreadable, with_article
from cosd_api.json_lines import (
    COMPARISON,
    Appender,
    JsonLine,
    JsonLines,
    foreign_kind,
    line_error,
    problem,
    read_lines,
)
from cosd_api.types import Endpoint, EndpointUsage, FusedToken

_START = f'{{"kind":"{COMPARISON}"'.encode()
_ANOTHER = "give another folder, or move this one away"
_REPAIR = ". Remove the line, and its question will be asked again"

_Hexadecimal = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]


class ReplacedPlace(Record):
    """A place in an answer where an assistant's text replaced the draft's.

    Attributes:
        start: byte offset in the answer.
        draft: the draft's text at this place; empty if it was the end of sequence.
        fused: the text that replaced the draft's text.
        draft_prob: the draft's probability of its own text, in [0, 1]; None if the server does not report it.
        prob: the assistant's probability of the replacement, in [0, 1]; None if the server does not report it.
        draft_raw: bytes of the draft's text in hexadecimal, if they are not valid UTF-8; else None.
        fused_raw: bytes of the replacement in hexadecimal, if they are not valid UTF-8; else None.
        word: whether the replacement is a whole word; the draft's text may be only the beginning of a word.
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
        return data_of(self.draft, self.draft_raw)

    @property
    def fused_data(self) -> bytes:
        """The replacement as bytes."""
        return data_of(self.fused, self.fused_raw)


class AnswerUsage(Record):
    """Usage of one endpoint for one answer.

    Attributes:
        requests: number of requests for generation and for scoring.
        read: number of tokens read, including cached tokens.
        written: number of tokens written.
        cached: number of the tokens read that came from the server's cache, as far as the server reports it.
    """

    requests: int = 0
    read: int = 0
    written: int = 0
    cached: int = 0

    @property
    def billed(self) -> int:
        """Number of tokens read and written."""
        return self.read + self.written

    @classmethod
    def of(cls, usage: EndpointUsage) -> Self:
        """Convert the usage that a result reports for one endpoint."""
        read, written, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        return cls(requests=usage.requests, read=read, written=written, cached=cached)


class GradedAnswer(Record):
    """One contestant's answer to one question: a line of the journal.

    Attributes:
        type: `"answer"`; `"failed"` if an endpoint or the grader failed at the question; or `"cut"` if the token limit
            of the whole comparison ended the answer. The next run asks failed and cut questions again.
        key: identity of the text; it depends on the contestant, the models, the limits and the prompt.
        graded: identity of the grading; it depends on the example and the grader.
        contestant: name of the contestant.
        question: `Example.key`.
        text: the answer.
        right: whether the answer is right; None if it was not graded.
        seconds: duration of the answer, without the time for discovering the servers.
        first_token: seconds until the first token was final; None if there is no token.
        tokens: number of tokens in the answer.
        usage: usage of each endpoint, keyed by the user's names for the models: `"draft"` and `"assistant"` (or
            `"assistant 1"` and so on), whichever model drafted.
        finish_reason: see `FusionResult`.
        stop_reason: see `FusionResult`.
        acceptance: draft tokens kept / (kept + replaced); None if the method judges no draft.
        units: number of units that were judged, or that could have been judged; None if the method judges no draft.
        asked: number of units that an assistant was asked about.
        differing: number of units at which an assistant disagreed.
        replaced: the places where an assistant's answer replaced the draft's.
        confidence: the mean probability of the tokens, in [0, 1]; None if any probability is not reported.
        least: the smallest probability of any token; None if any probability is not reported.
        error: the reason why the answer or its grading failed.
        warnings: warnings about the answer.
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
        """Number of drafting rounds: one, plus one per replacement that does not end the text; None without a draft."""
        if self.acceptance is None and self.units is None:
            return None
        last = self.replaced[-1] if self.replaced else None
        ends = last is not None and last.start + len(last.fused_data) >= len(self.text.encode())
        return 1 + len(self.replaced) - ends

    @property
    def billed(self) -> int:
        """Number of tokens read and written by all endpoints."""
        return sum(one.billed for one in self.usage.values())

    def money(self, prices: Mapping[str, Price] | None) -> float | None:
        """The price of all endpoints' tokens; None if no prices are given."""
        if prices is None:
            return None
        return sum(prices[name].of(one.read, one.written, one.cached) for name, one in self.usage.items())

    @property
    def complete(self) -> bool:
        """True if the question was answered and the answer was graded."""
        return self.type == "answer" and self.right is not None

    @classmethod
    def of(cls, result: FusionResult, contestant: str, role: Mapping[str, str], **fields: object) -> Self:
        """Make a record of an answer that is not graded yet.

        Args:
            result: the answer.
            contestant: name of the contestant.
            role: the user's name for each endpoint, keyed by the endpoint's name in the fusion.
            fields: further fields of the record, such as its keys.
        """
        timings = result.timings
        usage = {role[name]: AnswerUsage.of(one) for name, one in result.usage.items()}
        seconds = max(0.0, timings.total - timings.discovery)
        first = None if timings.first_token is None else max(0.0, timings.first_token - timings.discovery)
        judged = result.judged
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
    """Return the unit counts and the replaced places of an answer whose draft was judged."""
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
    """Test whether a token continues the replacement that the model `source` has begun."""
    return token.source == source and token.replaced is None


def _confidence(tokens: tuple[FusedToken, ...]) -> tuple[float | None, float | None]:
    """Return the mean and the smallest probability of the tokens, as reported by the model that wrote each token."""
    probs = [one.draft_prob if one.source == DRAFT else one.assistant_prob for one in tokens]
    known = [prob for prob in probs if prob is not None]
    if not known or len(known) < len(probs) - (tokens[-1].end and probs[-1] is None):  # a hidden end has no probability
        return None, None
    return min(1.0, math.fsum(known) / len(known)), min(known)


# The journal.


class _Line(GradedAnswer):
    """An answer as a line of the file.

    Attributes:
        spent: whether the tokens of this line were billed. False for a text that was graded again. None in files of
            earlier versions, in which only the first line of a text was billed.
    """

    spent: bool | None = None

    @classmethod
    def of_answer(cls, answer: GradedAnswer) -> Self:
        """Make the line of an answer that was billed."""
        return cls.model_construct(answer.model_fields_set, **dict(answer), spent=True)

    def answer(self) -> GradedAnswer:
        """The answer without the field `spent`."""
        fields = {name: getattr(self, name) for name in GradedAnswer.model_fields}
        return GradedAnswer.model_construct(self.model_fields_set - {"spent"}, **fields)


class _GradeLine(Record):
    """The grade of a text that is on an earlier line."""

    type: Literal["grade"] = "grade"
    key: str
    graded: str
    contestant: str
    question: str
    right: bool | None = None
    error: str | None = None

    @classmethod
    def of_answer(cls, answer: GradedAnswer) -> Self:
        """Make the line for an answer's grade."""
        return cls(**answer.model_dump(include=set(cls.model_fields) - {"type"}))

    @property
    def grading(self) -> tuple[str, str]:
        """The identities of the text and of its grading."""
        return self.key, self.graded

    @property
    def found(self) -> tuple[bool | None, str | None]:
        """The grade, and the error if there is no grade."""
        return self.right, self.error


_KINDS: Mapping[object, type[_Line | _GradeLine]] = {"grade": _GradeLine}
"""The class for each type of line; lines of all other types are answers."""
_LOOK = "look"  # lines of the sequential test of earlier versions, which are skipped


def grading_key(example: Example, grader: str) -> str:
    """Identity of a grading: SHA-256 (hex) of the example and of `grader`, the grader's identity or name."""
    asked = example.model_dump(mode="json", exclude={"group"})
    return hashlib.sha256(json.dumps([asked, grader], sort_keys=True).encode()).hexdigest()


class JournalHeader(Record):
    """The first line of a journal.

    Attributes:
        kind: kind of the file.
        schema_version: version of the format; in version 1, even models that share the same token ids were sent text.
        draft: the draft endpoint.
        assistant: the assistant endpoint, or the first of several.
        more_assistants: the other assistant endpoints.
        library_version: version of cosd-api.
    """

    kind: Literal["cosd-comparison"] = COMPARISON
    schema_version: Literal[2] = 2
    draft: Endpoint
    assistant: Endpoint
    more_assistants: tuple[Endpoint, ...] = ()
    library_version: str = __version__

    @property
    def models(self) -> list[Endpoint]:
        """The endpoints: the draft, then the assistants."""
        return [self.draft, self.assistant, *self.more_assistants]

    def line(self) -> str:
        """The line without its line feed; for two models, it is the same as in earlier versions."""
        return self.model_dump_json(exclude=set() if self.more_assistants else {"more_assistants"})


class Journal:
    """The answers of a comparison, in memory and in a file.

    Entering this context manager reads the file, locks it against other runs, and removes the last line if a crash has
    cut it off. Without `write`, the file is only read.

    Args:
        path: the file; None keeps the answers only in memory.
        header: the models that are compared.
        write: whether to write additions to the file; if False, the file need not exist.
        regrade: whether to ignore the grades in the file, so that its texts are graded again.

    Attributes:
        answers: answers without their grades, keyed by the key of the text.
        grades: for each text, its grades, keyed by the identity of the grading; questions with the same prompt share a
            text.
        failed: keys of the texts whose last line reported a failure when the file was read.
        billed: number of tokens billed by all lines, including failed answers.

    Raises:
        OSError: on entering, the file cannot be read or written.
        SettingError: on entering, the file is not a journal, contains answers of different models, or is open in
            another run; the file is not changed.
    """

    def __init__(self, path: Path | None, header: JournalHeader, *, write: bool = True, regrade: bool = False) -> None:
        self.answers: dict[str, GradedAnswer] = {}
        self.grades: dict[str, dict[str, bool]] = {}
        self._write = write
        self._regrade = regrade
        self._there: dict[tuple[str, str], tuple[bool | None, str | None]] = {}  # grades or errors in the file
        self.failed: set[str] = set()
        self.billed = 0
        self._path = path
        self._header = header
        self._appender: Appender | None = None

    def __enter__(self) -> Self:
        if self._path is None:
            return self
        lines = self._read(self._path) if self._path.exists() else JsonLines()
        if not self._write:
            return self
        self._appender = Appender(self._path, lines).__enter__()
        if not lines.lines:
            self._appender.write(self._header.line())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._appender is not None:
            self._appender.__exit__(kind, error, trace)

    def add(self, answer: GradedAnswer) -> None:
        """Add a billed answer that is not graded yet; it replaces an earlier answer with the same key."""
        self._take(answer, spent=True)
        self._there.pop((answer.key, answer.graded), None)  # a grade of the replaced text
        if self._appender is not None:
            self._appender.write(_Line.of_answer(answer).model_dump_json(exclude_defaults=True))

    def grade(self, answer: GradedAnswer) -> None:
        """Add the grade of a known text, or the reason why it has none."""
        line = _GradeLine.of_answer(answer)
        self._mark(line)
        if self._appender is not None and self._there.get(line.grading) != line.found:
            self._appender.write(line.model_dump_json(exclude_none=True))
        self._there[line.grading] = line.found

    def _take(self, answer: GradedAnswer, *, spent: bool) -> None:
        self.billed += answer.billed if spent else 0
        if answer.type != "answer":
            return
        before = self.answers.get(answer.key)
        if before is None or before.text != answer.text:
            self.grades[answer.key] = {}
        self.answers[answer.key] = answer.model_copy(update={"right": None, "error": None})

    def _mark(self, line: _GradeLine) -> None:
        if line.right is not None:
            self.grades.setdefault(line.key, {})[line.graded] = line.right

    def _read(self, path: Path) -> JsonLines:
        if foreign_kind(path, wanted=COMPARISON) is not None:
            raise _not_a_journal(path)
        lines = read_lines(path, may_be_cut=True, hint=_REPAIR)
        if not lines.lines:
            if not lines.rest.startswith(_START[: len(lines.rest)]):
                raise _not_a_journal(path)
            return lines
        first, *rest = lines.lines
        self._check(path, first)
        for line in rest:
            if line.fields.get("type") == _LOOK:
                continue
            kind = _KINDS.get(line.fields.get("type"), _Line)
            try:
                found = kind.model_validate(line.fields)
            except ValidationError as error:
                raise line_error(path, line.number, problem(error, [*kind.model_fields]) + _REPAIR) from None
            grade = found if isinstance(found, _GradeLine) else _GradeLine.of_answer(found)
            if isinstance(found, _Line):
                spent = found.key not in self.answers if found.spent is None else found.spent
                self._take(found.answer().model_copy(update={"right": None}), spent=spent)
            self._there[grade.grading] = grade.found
            if not self._regrade:
                self._mark(grade)
            if found.type == "failed" or found.error is not None:
                self.failed.add(found.key)
            else:
                self.failed.discard(found.key)
        return lines

    def _check(self, path: Path, line: JsonLine) -> None:
        """Check that the file is a journal of these models."""
        fields: Mapping[str, object] = line.fields
        if fields.get("kind") != COMPARISON:
            raise _not_a_journal(path)
        version = fields.get("schema_version")
        if isinstance(version, int) and version > JournalHeader.model_fields["schema_version"].default:
            raise SettingError(f"{path} was written by a newer cosd-api (schema_version {version}): update cosd-api")
        if version == 1:
            words = f"{path} was begun by an earlier cosd-api, which asked models with the same ids after text"
            raise SettingError(f"{words}: its answers may differ from today's. {_ANOTHER.capitalize()}")
        try:
            there = JournalHeader.model_validate(fields)
        except ValidationError as error:
            reason = f"its header is broken: {problem(error, [*JournalHeader.model_fields])}"
            raise line_error(path, line.number, reason) from None
        theirs, mine = ([one.model for one in header.models] for header in (there, self._header))
        if len(theirs) != len(mine):
            words = f"{path} holds answers of {len(theirs)} models, not of {len(mine)}"
            raise SettingError(f"{words}: {_ANOTHER}")
        moved = "" if sorted(theirs) != sorted(mine) else "swap draft and assistant, or "
        if moved and len(mine) > 2:
            moved = "give the models in the same order, or "
        for old, new in zip(there.models, mine, strict=True):
            if old.model != new:
                words = f"{path} holds answers with {old.model} as {with_article(old.name)}, not {new}"
                raise SettingError(f"{words}: {moved}{_ANOTHER}")


def _not_a_journal(path: Path) -> SettingError:
    kind = foreign_kind(path, wanted=COMPARISON)
    named = "" if kind is None else f" (it is {kind})"
    return SettingError(f"{path} does not hold the answers of a comparison and was not changed{named}: {_ANOTHER}")
