"""An index of a batch's lines by `custom_id`, kept on disk so that memory does not grow with the number of lines."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, Self

__all__ = ["IndexedLine", "LineIndex", "LineState"]

LineState = Literal["new", "answered", "failed", "cut"]
"""The state of a line. `"new"` means that the line is not in the output yet. `"cut"` means that the line was ended
by the limit for the whole batch; the next run retries it."""

_STATES: tuple[LineState, ...] = ("new", "answered", "failed", "cut")
_CACHE = 8_000  # the size of SQLite's cache, in kilobytes
_TABLES = """
CREATE TABLE lines (id BLOB PRIMARY KEY, number INTEGER, state INTEGER NOT NULL, start INTEGER, usage TEXT)
WITHOUT ROWID;
CREATE TABLE superseded (start INTEGER PRIMARY KEY);
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
    """The state of every line, in a temporary database, which is deleted when this context manager exits."""

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
        if row is not None and row[0] is not None:
            self._db.execute("INSERT INTO superseded VALUES (?)", (row[0],))
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

    def others(self) -> int:
        """Count the ids that occur in the output but not in the input."""
        return int(self._db.execute("SELECT count(*) FROM lines WHERE number IS NULL").fetchone()[0])

    def superseded(self, start: int) -> bool:
        """Test whether a later line supersedes the output line that begins at byte `start`."""
        return self._db.execute("SELECT 1 FROM superseded WHERE start = ?", (start,)).fetchone() is not None

    def any_superseded(self) -> bool:
        """Test whether any output line is superseded."""
        return self._db.execute("SELECT 1 FROM superseded LIMIT 1").fetchone() is not None


def _key(custom_id: str) -> bytes:
    return hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
