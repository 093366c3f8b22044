"""Output of a batch: one line for each input line, in the order of completion; and the state of every line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cosd_api import SettingError
from cosd_api.apps.batch.reply import CUT, SCHEMA
from cosd_api.apps.batch.summary import LineUsage, dumped, loaded, together_cost
from cosd_api.apps.json_lines import Appender, JsonLine, JsonLines, line_error, problem

LineState = Literal["new", "answered", "failed", "cut"]
"""The state of a line. `"new"` means that the line is not in the output yet. `"cut"` means that the line was ended
by the limit for the whole batch; the next run retries it."""

_STATES: tuple[LineState, ...] = ("new", "answered", "failed", "cut")
_CACHE = 8_000  # the size of SQLite's cache, in kilobytes
_TABLES = """
CREATE TABLE lines (id BLOB PRIMARY KEY, number INTEGER, state INTEGER NOT NULL, start INTEGER, usage TEXT)
WITHOUT ROWID;
"""


class IndexedLine(NamedTuple):
    """The state of an input line.

    Attributes:
        state: the state.
        start: the byte offset at which the output line with the same id begins; -1 if there is no such line.
        usage: the cost of failed attempts, as JSON.
    """

    state: LineState
    start: int
    usage: str | None


class LineIndex:
    """The state of every line, in a temporary database on disk, so that memory does not grow with the lines.

    This context manager deletes the database when it exits.

    Attributes:
        any_superseded: whether a later output line has superseded another.
    """

    def __init__(self) -> None:
        self.any_superseded = False

    def __enter__(self) -> Self:
        self._db = sqlite3.connect("", isolation_level=None)
        for name, value in (("journal_mode", "OFF"), ("synchronous", "OFF"), ("cache_size", -_CACHE)):
            self._db.execute(f"PRAGMA {name} = {value}")
        self._db.executescript(_TABLES)
        return self

    def __exit__(self, *exc: object) -> None:
        self._db.close()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Combine the changes inside the block into one transaction, which is faster."""
        self._db.execute("BEGIN")
        yield
        self._db.execute("COMMIT")

    def enter(self, custom_id: str, number: int) -> int | None:
        """Add an input line to the index, unless an earlier line has the same id.

        Returns:
            The number of the earlier line; None if this line was added.
        """
        key = _key(custom_id)
        row = self._db.execute("SELECT number FROM lines WHERE id = ?", (key,)).fetchone()
        if row is not None and row[0] is not None:
            return int(row[0])
        words = "INSERT INTO lines (id, number, state) VALUES (?, ?, 0) ON CONFLICT (id) DO UPDATE SET number = ?"
        self._db.execute(words, (key, number, number))
        return None

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
        key = _key(custom_id)
        row = self._db.execute("SELECT start, usage FROM lines WHERE id = ?", (key,)).fetchone()
        self.any_superseded |= row is not None and row[0] is not None
        words = "INSERT INTO lines (id, state, start, usage) VALUES (?1, ?2, ?3, ?4) "
        words += "ON CONFLICT (id) DO UPDATE SET state = ?2, start = ?3, usage = ?4"
        self._db.execute(words, (key, _STATES.index(state), start, usage))
        return None if row is None else row[1]

    def state(self, custom_id: str, number: int) -> IndexedLine | None:
        """Return the state of an input line; None if no line with this id and number was added."""
        words = "SELECT state, start, usage FROM lines WHERE id = ? AND number = ?"
        row: tuple[int, int | None, str | None] | None
        row = self._db.execute(words, (_key(custom_id), number)).fetchone()
        return None if row is None else IndexedLine(_STATES[row[0]], -1 if row[1] is None else row[1], row[2])

    def counts(self) -> dict[LineState, int]:
        """Count the input lines in each state."""
        words = "SELECT state, count(*) FROM lines WHERE number IS NOT NULL GROUP BY state"
        found = dict(self._db.execute(words).fetchall())
        return {state: found.get(at, 0) for at, state in enumerate(_STATES)}

    def starts(self) -> Iterator[int]:
        """Yield the byte offsets at which the output lines begin that are not superseded, in ascending order."""
        for row in self._db.execute("SELECT start FROM lines WHERE start IS NOT NULL ORDER BY start"):
            yield int(row[0])


def _key(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()


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
        with self._index.changing():
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
