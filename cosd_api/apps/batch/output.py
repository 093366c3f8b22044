"""Output of a batch: one line for each input line, in the order of completion; and the state of every line."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosd_api import SettingError
from cosd_api.apps.batch.reply import CUT, SCHEMA
from cosd_api.apps.batch.summary import LineUsage, dumped, loaded, together_cost
from cosd_api.apps.json_lines import Appender, JsonLine, JsonLines, line_error, problem

LineState = Literal["new", "answered", "failed", "cut"]
"""The state of a line. `"new"` means that the line is not in the output yet. `"cut"` means that the line was ended
by the limit for the whole batch; the next run retries it."""


@dataclass(slots=True)
class IndexedLine:
    """The state of a line.

    Attributes:
        number: the number of the line in the input; None if the input has no line with this id.
        state: the state.
        start: the byte offset at which the output line with the same id begins; -1 if there is no such line.
        usage: the cost of failed attempts, as JSON; None if no later attempt needs it.
    """

    number: int | None = None
    state: LineState = "new"
    start: int = -1
    usage: str | None = None


class LineIndex:
    """The state of every line, by its id.

    Attributes:
        any_superseded: whether a later output line has superseded another.
    """

    def __init__(self) -> None:
        self.any_superseded = False
        self._lines: dict[str, IndexedLine] = {}

    def enter(self, custom_id: str, number: int) -> int | None:
        """Add an input line to the index, unless an earlier line has the same id.

        Returns:
            The number of the earlier line; None if this line was added.
        """
        line = self._lines.setdefault(custom_id, IndexedLine())
        if line.number is None:
            line.number = number
            return None
        return line.number

    def written(self, custom_id: str, state: LineState, start: int, usage: str | None) -> str | None:
        """Record an output line, which supersedes any earlier output line with the same id.

        Args:
            custom_id: the id of the line.
            state: the new state of the line.
            start: the byte offset at which the line begins in the output.
            usage: the cost of the line, as JSON; None if no later attempt needs it.

        Returns:
            The recorded cost of the superseded line; None if there is no such line or cost.
        """
        line = self._lines.setdefault(custom_id, IndexedLine())
        earlier = line.usage
        self.any_superseded |= line.start >= 0
        line.state, line.start, line.usage = state, start, usage
        return earlier

    def state(self, custom_id: str, number: int) -> IndexedLine | None:
        """Return the state of an input line; None if no line with this id and number was added."""
        line = self._lines.get(custom_id)
        return None if line is None or line.number != number else line

    def counts(self) -> Counter[LineState]:
        """Count the input lines in each state."""
        return Counter(line.state for line in self._lines.values() if line.number is not None)

    def starts(self) -> list[int]:
        """Return the byte offsets at which the output lines begin that are not superseded, in ascending order."""
        return sorted(line.start for line in self._lines.values() if line.start >= 0)


_START = b'{"custom_id":'
_FOREIGN = "not a line that cosd batch wrote, and nothing was changed: give another file (-o)"
_REPAIR = ". Remove the line, and the next run will answer it again"


class _Partly(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


class _Error(_Partly):
    code: str


class _Cosd(_Partly):
    schema_version: int = 1
    method: str
    models: tuple[str, ...]
    usage: dict[str, LineUsage]


class _OutputLine(_Partly):
    """The fields of an output line that a later run reads."""

    custom_id: Annotated[str, Field(min_length=1)]
    error: _Error | None
    cosd: _Cosd


class OutputFile:
    """The output file of a batch, as a context manager.

    On entering, the file is read and then locked, so that no other run can write to it. If the last line is incomplete
    because of a crash, that line is removed.

    Args:
        path: the file, which is created if it does not exist.
        index: receives the states of the file's lines.

    Attributes:
        usage: the cost of all lines, by endpoint.
        written_by: the method and the models of the file's lines; None if there are no lines.
        first: the byte offset at which the first line of this run begins.

    Raises:
        OSError: on entering, the file cannot be read or written.
        SettingError: on entering, the file is not the output of a batch, or another run has it open. The file is not
            changed.
    """

    def __init__(self, path: Path, index: LineIndex) -> None:
        self._path = path
        self._index = index
        self._appender: Appender
        self._end = self.first = 0
        self.usage: dict[str, LineUsage] = {}
        self.written_by: tuple[str, tuple[str, ...]] | None = None

    def __enter__(self) -> Self:
        content = self._read() if self._path.exists() else JsonLines()
        self._appender = Appender(self._path, content).__enter__()
        self._end = self.first = content.size + (not content.ended)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._named():
            self._appender.__exit__()

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line. It supersedes any earlier line with the same id, and its cost includes that line's cost."""
        text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text = text.encode(errors="backslashreplace").decode()  # a server's error may contain a lone surrogate
        with self._named():
            self._appender.write(text)
        self._take(_OutputLine.model_validate(line), self._end)
        self._end += len(text.encode()) + 1

    def compact(self) -> None:
        """Remove superseded lines after the last line is written. A crash leaves either the old file or the new one."""
        if not self._index.any_superseded:
            return
        path = self._path.resolve()  # a symbolic link is kept, and its target is replaced
        shorter = path.with_name(f"{path.name}.shorter")
        with path.open("rb") as source, shorter.open("wb") as target:
            for start in self._index.starts():
                source.seek(start)
                target.write(source.readline())
            target.flush()
            os.fsync(target.fileno())
        shutil.copymode(path, shorter)
        if os.name == "nt":  # Windows cannot replace an open file
            self._appender.__exit__()
        shorter.replace(path)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file's name to any `OSError` that is raised inside the block."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def _read(self) -> JsonLines:
        content = JsonLines()
        for line in content.read(self._path, may_be_cut=True, hint=_REPAIR):
            self._take(self._checked(line), line.start)
        if self.written_by is None and not content.rest.startswith(_START[: len(content.rest)]):
            raise line_error(self._path, 1, _FOREIGN)
        return content

    def _checked(self, line: JsonLine) -> _OutputLine:
        try:
            return _OutputLine.model_validate(line.fields)
        except ValidationError as error:
            if not {"custom_id", "cosd"} <= {*line.fields}:
                raise line_error(self._path, line.number, _FOREIGN) from None
            words = problem(error, [*_OutputLine.model_fields]) + _REPAIR
            raise line_error(self._path, line.number, words) from None

    def _take(self, line: _OutputLine, start: int) -> None:
        if line.cosd.schema_version != SCHEMA:
            words = f"it was written by another version of cosd-api (schema_version {line.cosd.schema_version})"
            raise SettingError(f"{self._path}: {words}: give another file (-o)")
        state: LineState = "answered" if line.error is None else "cut" if line.error.code == CUT else "failed"
        usage = line.cosd.usage
        earlier = self._index.written(line.custom_id, state, start, None if state == "answered" else dumped(usage))
        if self.written_by is None:
            self.written_by = line.cosd.method, line.cosd.models
        elif self.written_by != (line.cosd.method, line.cosd.models):
            words = "it holds answers of several fusions: give another file (-o)"
            raise SettingError(f"{self._path}: {words}")
        self.usage = together_cost([self.usage, usage], loaded(earlier))
