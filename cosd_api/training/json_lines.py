"""JSON lines files: read them with line numbers, and append to them so that a crash can damage only the last line."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import samestat
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, cast

from pydantic import ValidationError

from cosd_api import SettingError
from cosd_api.extend import suggestion
from cosd_api.training.file_lock import lock

__all__ = [
    "COMPARISON",
    "SAMPLES",
    "Appender",
    "JsonLine",
    "JsonLines",
    "LineReader",
    "file_kind",
    "foreign_kind",
    "line_error",
    "problem",
    "read_lines",
]

SAMPLES: Literal["cosd-samples"] = "cosd-samples"
"""The `kind` in the header of a samples file."""
COMPARISON: Literal["cosd-comparison"] = "cosd-comparison"
"""The `kind` in the header of the journal of a comparison."""

_BOM = b"\xef\xbb\xbf"  # UTF-8's byte order mark, which some editors write before the text
_HEAD = 300  # number of bytes at the start of a file from which its kind is detected
_KIND = re.compile(r'\s*\{[^{}\[\]]*?(?<!\\)"kind"\s*:\s*"([^"\\]+)"')
_BEGINNINGS: Mapping[str, str] = {
    r"\s*\[": "array",
    r'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"text"': "result",
    r'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"draft"': "comparison",
    r'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"decision"': "advice",
    r'\s*\{\s*"prompt"': "examples",
}
_KINDS: Mapping[str, str] = {
    "tree": "a decision tree, which cosd fuse --tree takes",
    "deferral": "a deferral gate, which cosd fuse --method defer --set gate=FILE takes",
    "co-llm": "a Co-LLM gate, which cosd fuse --method defer --set gate=FILE takes",
    "cosd-trace": "the trace of an answer, which cosd explain takes",
    SAMPLES: "a file of samples, which cosd train-tree and cosd tune take",
    COMPARISON: "the answers of a comparison, which cosd compare resumes",
    "array": "one JSON array, not an object on each line",
    "result": "the result of a fusion, as cosd fuse --json prints it",
    "comparison": "the result of a comparison, as cosd compare writes it",
    "advice": "advice, as cosd compare --advise --json prints it",
    "examples": "a file of examples, which cosd collect takes",
}


@dataclass(frozen=True, slots=True)
class JsonLine:
    """One line: its number in the file, counted from 1, and the fields of its JSON object."""

    number: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JsonLines:
    """The content of a JSON lines file.

    Attributes:
        lines: the complete lines, which end in a line feed or are valid JSON. Empty lines are left out.
        size: number of bytes up to the end of the last complete line.
        rest: the bytes of the last line if a crash has cut it; else empty.
        ended: whether the last complete line ends in a line feed.
    """

    lines: tuple[JsonLine, ...] = ()
    size: int = 0
    rest: bytes = b""
    ended: bool = True


def file_kind(path: str | Path) -> str | None:
    """Detect the kind of a file from its first bytes; None if it is unknown.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(_HEAD).removeprefix(_BOM).decode(errors="replace")
    if (named := _KIND.match(head)) is not None:
        return named[1]
    return next((kind for beginning, kind in _BEGINNINGS.items() if re.match(beginning, head)), None)


def foreign_kind(path: str | Path, *, wanted: str) -> str | None:
    """If a file is known to be of another kind, describe the kind and name the command for it; else return None.

    Raises:
        OSError: the file cannot be read.
    """
    kind = file_kind(path)
    return None if kind is None or kind == wanted else _KINDS.get(kind)


class LineReader:
    """Reader that keeps only one line of the file in memory.

    Args:
        path: the file.
        may_be_cut: whether a crash may have cut the last line. If so, a last line that is invalid JSON and has no line
            feed is not an error.
        hint: how to repair an invalid line, for the error message.

    Attributes:
        start: byte offset of the most recently read line.
        content: the content that has been read so far, without its `lines`.
    """

    def __init__(self, path: Path, *, may_be_cut: bool, hint: str = "") -> None:
        self._path = path
        self._may_be_cut = may_be_cut
        self._hint = hint
        self.start = 0
        self.content = JsonLines()

    def __iter__(self) -> Iterator[JsonLine]:
        """Yield the lines, except for empty ones.

        Raises:
            OSError: the file cannot be read.
            SettingError: a line is not a JSON object; the message names file and line.
        """
        size = 0
        with self._path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                text, found = raw.removeprefix(_BOM), None
                try:
                    if text.strip():
                        found = JsonLine(number, _fields(text))
                except (ValueError, TypeError, RecursionError) as error:
                    if self._may_be_cut and not raw.endswith(b"\n") and raw.startswith(b"{"):
                        self.content = JsonLines(size=size, rest=raw)
                        return
                    raise line_error(self._path, number, _reason(error) + self._hint) from None
                self.start, size = size, size + len(raw)
                self.content = JsonLines(size=size, ended=raw.endswith(b"\n"))
                if found is not None:
                    yield found


def read_lines(path: Path, *, may_be_cut: bool, hint: str = "") -> JsonLines:
    """Read a whole file; see `LineReader`.

    Raises:
        OSError: the file cannot be read.
        SettingError: a line is not a JSON object; the message names file and line.
    """
    reader = LineReader(path, may_be_cut=may_be_cut, hint=hint)
    lines = tuple(reader)
    return replace(reader.content, lines=lines)


def _fields(raw: bytes) -> Mapping[str, Any]:
    value: object = json.loads(raw.decode().rstrip("\r\n"))
    if not isinstance(value, dict):
        raise TypeError("not a JSON object: {...}")
    return cast("dict[str, Any]", value)


def _reason(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return f"not UTF-8 text at byte {error.start}"
        case json.JSONDecodeError():
            return f"invalid JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})"
        case RecursionError():
            return "nested too deeply"
        case _:
            return str(error)


def line_error(path: Path, number: int, reason: str) -> SettingError:
    """Create the error for an invalid line of a file."""
    return SettingError(f"{path}, line {number}: {reason}")


def problem(error: ValidationError, known: Sequence[str]) -> str:
    """Describe the first problem that validation found, without quoting any values.

    Args:
        error: the validation error.
        known: the fields that are allowed.
    """
    found = error.errors(include_url=False, include_input=False)
    for one in found:  # if a name is misspelt, saying so is more helpful than reporting a missing field
        if one["type"] == "extra_forbidden" and len(one["loc"]) == 1:
            name = str(one["loc"][0])
            if more := suggestion(name, known):
                return f"unknown field {name!r}{more}"
    first = found[0]
    where = ".".join(map(str, first["loc"]))
    match first["type"]:
        case "missing":
            return f"the field {where!r} is missing"
        case "extra_forbidden":
            return f"unknown field {where!r}; known are {', '.join(known)}"
        case "string_too_short":
            return f"{where} is empty"
        case _:
            words = first["msg"].removeprefix("Value error, ")
            return f"{where}: {words}" if where else words


class Appender:
    """A context manager that locks a file and appends lines to it, with a flush after each line.

    Args:
        path: the file; created if missing.
        lines: the content of the file when it was read. If its last line was cut, that line is removed from the file.

    Raises:
        OSError: on entering, the file cannot be written.
        SettingError: on entering, another run has the file open, or the file has changed since it was read.
    """

    def __init__(self, path: Path, lines: JsonLines) -> None:
        self._path = path
        self._lines = lines
        self._file: BinaryIO

    def __enter__(self) -> Self:
        self._file = self._path.open("ab")
        lines = self._lines
        if not lock(self._file):
            self._file.close()
            words = f"{self._path} is open in another run, which writes to it"
            raise SettingError(f"{words}: wait until that one has ended, or give another place")
        # This is False if the file was deleted or replaced after it was opened.
        there = self._path.exists() and samestat(os.fstat(self._file.fileno()), self._path.stat())
        if not there or self._file.seek(0, io.SEEK_END) != lines.size + len(lines.rest):
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
        """Append one line."""
        self._file.write(line.encode() + b"\n")
        self._file.flush()
