"""Answers of a comparison, and the journal from which a run resumes, with one line for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError

from cosd_api import FusionResult, SettingError, __version__
from cosd_api.apps.json_lines import (
    COMPARISON,
    Appender,
    JsonLines,
    line_error,
    problem,
    read_records,
)
from cosd_api.common.wording import in_words
from cosd_api.extend import Probability, Record, Seconds
from cosd_api.types import Endpoint, EndpointUsage

_ANOTHER = "give another folder, or move this one away"
_REPAIR = ". Remove the line, and its question will be asked again"


class ReplacedPlace(Record):
    """A place in an answer where an assistant's text replaced the draft's.

    Attributes:
        draft: the draft's text at this place; empty if it was the end of sequence.
        draft_prob: the draft's probability of its own text, in [0, 1]; None if the server does not report it.
        prob: the assistant's probability of the replacement, in [0, 1]; None if the server does not report it.
    """

    draft: str
    draft_prob: Probability | None = None
    prob: Probability | None = None


class AnswerUsage(Record):
    """Usage of one endpoint for one answer.

    Attributes:
        read: number of tokens read, including cached tokens.
        cached: number of the tokens read that came from the server's cache, as far as the server reports it.
    """

    requests: int = 0
    read: int = 0
    written: int = 0
    cached: int = 0

    @classmethod
    def of(cls, usage: EndpointUsage) -> Self:
        """Convert the usage that a result reports for one endpoint."""
        read, written, cached = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        return cls(requests=usage.requests, read=read, written=written, cached=cached)


class GradedAnswer(Record):
    """One contestant's answer to one question.

    Attributes:
        type: `"answer"`; `"failed"` if an endpoint failed at the question; or `"cut"` if the token limit of the whole
            comparison ended the answer. The next run asks failed and cut questions again.
        key: identity of the text; it depends on the contestant, the models, the limits and the prompt.
        question: `Example.key`.
        right: whether the answer is right; None if it is not graded, as in the journal.
        seconds: duration of the answer, without the time for discovering the servers.
        tokens: number of tokens in the answer.
        usage: usage of each endpoint, keyed by the user's names for the models, whichever model drafted.
        acceptance, rounds, differing: share of the draft's tokens that were kept, number of drafting rounds, and number
            of units at which an assistant disagreed; None if the method judges no draft.
        replaced: the places where an assistant's answer replaced the draft's.
        error: the reason why the answer or its grading failed.
    """

    type: Literal["answer", "failed", "cut"] = "answer"
    key: str
    contestant: str
    question: str
    text: str = ""
    right: bool | None = None
    seconds: Seconds | None = None
    tokens: int = 0
    usage: dict[str, AnswerUsage] = Field(default_factory=dict[str, AnswerUsage])
    finish_reason: str | None = None
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    rounds: int | None = None
    differing: int | None = None
    replaced: tuple[ReplacedPlace, ...] = ()
    error: str | None = None

    @property
    def billed(self) -> int:
        """Number of tokens read and written by all endpoints."""
        return sum(one.read + one.written for one in self.usage.values())

    @classmethod
    def of(cls, result: FusionResult, role: Mapping[str, str], **fields: Any) -> Self:
        """Make a record of an answer that is not graded yet.

        Args:
            result: the answer.
            role: the user's name for each endpoint, keyed by the endpoint's name in the fusion.
            fields: further fields of the record, such as its keys.
        """
        timings, differing = result.timings, None
        if result.judged:
            differing = len({one.unit for one in result.tokens if any(not made.agreed for made in one.decisions)})
        return cls(
            text=result.text,
            seconds=max(0.0, timings.total - timings.discovery),
            tokens=len(result.tokens),
            usage={role[name]: AnswerUsage.of(one) for name, one in result.usage.items()},
            finish_reason=result.finish_reason,
            acceptance=result.acceptance_rate,
            rounds=result.iterations,
            differing=differing,
            replaced=tuple(
                ReplacedPlace(draft=one.replaced, draft_prob=one.draft_prob, prob=one.assistant_prob)
                for one in result.tokens
                if one.replaced is not None
            ),
            **fields,
        )


class JournalHeader(Record):
    """The first line of a journal."""

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


class Journal:
    """The answers of a comparison, in memory and in a file.

    Entering this context manager reads the file, locks it against other runs, and removes the last line if a crash has
    cut it off. Without `write`, the file is only read.

    Args:
        path: the file; None keeps the answers only in memory.
        header: the models that are compared.
        write: whether to write additions to the file; if False, the file need not exist.

    Attributes:
        answers: answers without their grades, keyed by the key of the text.
        failed: keys of the texts whose last line reported a failure when the file was read.
        billed: number of tokens billed by all lines, including failed answers.

    Raises:
        OSError: on entering, the file cannot be read or written.
        SettingError: on entering, the file is not a journal, contains answers of different models, or is open in
            another run; the file is not changed.
    """

    def __init__(self, path: Path | None, header: JournalHeader, *, write: bool = True) -> None:
        self.answers: dict[str, GradedAnswer] = {}
        self.failed: set[str] = set()
        self.billed = 0
        self.header = header
        self._path, self._write = path, write
        self._appender: Appender | None = None

    def __enter__(self) -> Self:
        if self._path is None:
            return self
        lines = self._read(self._path) if self._path.exists() else JsonLines()
        if self._write:
            self._appender = Appender(self._path, lines).__enter__()
            if not lines.lines:
                self._appender.write(self.header.model_dump_json())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._appender is not None:
            self._appender.__exit__(kind, error, trace)

    def add(self, answer: GradedAnswer) -> None:
        """Add a billed answer that is not graded yet; it replaces an earlier answer with the same key."""
        self._take(answer)
        if self._appender is not None:
            self._appender.write(answer.model_dump_json(exclude_defaults=True))

    def _take(self, answer: GradedAnswer) -> None:
        self.billed += answer.billed
        if answer.type == "answer":
            self.answers[answer.key] = answer

    def _read(self, path: Path) -> JsonLines:
        header, lines = read_records(
            path,
            JournalHeader,
            is_not="does not hold the answers of a comparison",
            advice=_ANOTHER,
            hint=_REPAIR,
        )
        if header is not None:
            self._check(path, header)
        for line in lines.lines[1:]:
            try:
                found = GradedAnswer.model_validate(line.fields)
            except ValidationError as error:
                reason = problem(error, [*GradedAnswer.model_fields]) + _REPAIR
                raise line_error(path, line.number, reason) from None
            self._take(found.model_copy(update={"error": None}))
            (self.failed.add if found.type == "failed" else self.failed.discard)(found.key)
        return lines

    def _check(self, path: Path, there: JournalHeader) -> None:
        """Check that the file is a journal of these models."""
        theirs, mine = ([one.model for one in header.models] for header in (there, self.header))
        if theirs != mine:
            moved = "give the models in the same order, or " if sorted(theirs) == sorted(mine) else ""
            words = f"{path} holds answers of {in_words(theirs)}, not of {in_words(mine)}"
            raise SettingError(f"{words}: {moved}{_ANOTHER}")
