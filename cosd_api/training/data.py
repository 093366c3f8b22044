"""Files of JSON lines: read with the number of each line, and appended to line by line.

A line is whole when it ends in a line feed, or is JSON as it is. A crash can only cut the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from pydantic import ValidationError

from cosd_api.errors import SettingError

__all__ = ["BOM", "Appender", "Line", "Lines", "lines_of", "problem", "wrong"]

BOM = b"\xef\xbb\xbf"  # what some editors put before a text


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its number in the file, from 1, and its fields."""

    number: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lines:
    """What a file holds.

    Attributes:
        lines: those that are whole; empty ones are left out.
        size: bytes up to the end of the last whole one.
        rest: what is there of a last line that was cut.
        ended: whether the last whole one ends in a line feed.
    """

    lines: tuple[Line, ...] = ()
    size: int = 0
    rest: bytes = b""
    ended: bool = True


def lines_of(path: Path, *, may_be_cut: bool, hint: str = "") -> Lines:
    """Reads a file.

    Args:
        path: of the file.
        may_be_cut: whether a last line that is no JSON is what a crash has left.
        hint: what to do about a line that is none.

    Raises:
        OSError: it cannot be read.
        SettingError: a line is no JSON object; the words name file and line.
    """
    found: list[Line] = []
    size, raw = 0, b""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                if raw.removeprefix(BOM).strip():
                    found.append(Line(number, _fields(raw.removeprefix(BOM))))
            except (ValueError, TypeError, RecursionError) as error:
                if may_be_cut and not raw.endswith(b"\n") and raw.startswith(b"{"):
                    return Lines(tuple(found), size, rest=raw)
                raise wrong(path, number, _words(error) + hint) from None
            size += len(raw)
    return Lines(tuple(found), size, ended=not raw or raw.endswith(b"\n"))


def _fields(raw: bytes) -> Mapping[str, Any]:
    value: object = json.loads(raw.decode().rstrip("\r\n"))
    if not isinstance(value, dict):
        raise TypeError("it is no JSON object: {...}")
    return cast("dict[str, Any]", value)


def _words(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return f"it is not UTF-8 text at byte {error.start}"
        case json.JSONDecodeError():
            return f"it is no JSON ({error.msg} at character {error.pos + 1})"
        case RecursionError():
            return "it is nested too deeply"
        case _:
            return str(error)


def wrong(path: Path, number: int, words: str) -> SettingError:
    """What is wrong with one line of a file."""
    return SettingError(f"{path}, line {number}: {words}")


def problem(error: ValidationError, known: Sequence[str]) -> str:
    """The first thing that is wrong with a line, in words that repeat nothing of it.

    Args:
        error: what it was found by.
        known: the fields that a line may have.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "missing":
            return f"it lacks {where!r}"
        case "extra_forbidden":
            return f"it has the unknown field {where!r}; known are {', '.join(known)}"
        case "string_too_short":
            return f"{where} is empty"
        case _:
            words = first["msg"].removeprefix("Value error, ")
            return f"{where}: {words}" if where else words


class Appender:
    """Appends to a file, a line at a time; what was written is in the file at once.

    Args:
        path: of the file; made where it is not there.
        lines: what it held when it was read. A last line that was cut is taken away.

    Raises:
        OSError: on entering, it cannot be written.
        SettingError: on entering, it has changed since it was read.
    """

    def __init__(self, path: Path, lines: Lines) -> None:
        self._path = path
        self._lines = lines
        self._file: BinaryIO

    def __enter__(self) -> Self:
        self._file = self._path.open("ab")
        lines = self._lines
        if self._file.tell() != lines.size + len(lines.rest):
            self._file.close()
            raise SettingError(f"{self._path} has changed since it was read: is another run writing to it?")
        if lines.rest:
            self._file.truncate(lines.size)
        if not lines.ended:
            self._file.write(b"\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, line: str) -> None:
        """Appends one line."""
        self._file.write(line.encode() + b"\n")
        self._file.flush()
