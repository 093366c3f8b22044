"""JSON lines files: read them with line numbers, and append to them so that a crash can damage only the last line."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import samestat
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ValidationError

from cosd_api import SettingError
from cosd_providers.suggestions import suggestion

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = [
    "COMPARISON",
    "SAMPLES",
    "Appender",
    "JsonLine",
    "JsonLines",
    "file_kind",
    "foreign_kind",
    "line_error",
    "lock",
    "problem",
    "read_lines",
    "read_records",
]

SAMPLES: Literal["cosd-samples"] = "cosd-samples"
"""The `kind` in the header of a samples file."""
COMPARISON: Literal["cosd-comparison"] = "cosd-comparison"
"""The `kind` in the header of the journal of a comparison."""

_HeaderT = TypeVar("_HeaderT", bound=BaseModel)
_BOM = b"\xef\xbb\xbf"  # UTF-8's byte order mark, which some editors write before the text
_HEAD = 300  # number of bytes at the start of a file from which its kind is detected
_KIND = re.compile(r'\s*\{[^{}\[\]]*?(?<!\\)"kind"\s*:\s*"([^"\\]+)"')
_KINDS: Mapping[str, str] = {
    "tree": "a decision tree, which cosd fuse --tree takes",
    "deferral": "a deferral gate, which cosd fuse --method defer --set gate=FILE takes",
    "co-llm": "a Co-LLM gate, which cosd fuse --method defer --set gate=FILE takes",
    "cosd-trace": "the trace of an answer, which cosd explain takes",
    SAMPLES: "a file of samples, which cosd train-tree and cosd tune take",
    COMPARISON: "the answers of a comparison, which cosd compare resumes",
    "array": "one JSON array, not an object on each line",
}


@dataclass(frozen=True, slots=True)
class JsonLine:
    """One line.

    Attributes:
        number: its number in the file, counted from 1.
        fields: the fields of its JSON object.
        start: the byte offset at which it begins.
    """

    number: int
    fields: Mapping[str, Any]
    start: int = 0


@dataclass(slots=True)
class JsonLines:
    """The content of a JSON lines file.

    Attributes:
        lines: the complete lines, which end in a line feed or are valid JSON. Empty lines are left out.
        size: number of bytes up to the end of the last complete line.
        rest: the bytes of the last line if a crash has cut it; else empty.
        ended: whether the last complete line ends in a line feed.
    """

    lines: Sequence[JsonLine] = ()
    size: int = 0
    rest: bytes = b""
    ended: bool = True

    def read(self, path: Path, *, may_be_cut: bool, hint: str = "") -> Iterator[JsonLine]:
        """Yield the lines of a file, except for empty ones, without storing them in `lines`.

        Args:
            path: the file.
            may_be_cut: whether a crash may have cut the last line. If so, a last line that is invalid JSON and has no
                line feed is not an error.
            hint: how to repair an invalid line, for the error message.

        Raises:
            OSError: the file cannot be read.
            SettingError: a line is not a JSON object; the message names file and line.
        """
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                text, start = raw.removeprefix(_BOM), self.size
                try:
                    fields = _fields(text) if text.strip() else None
                except (ValueError, TypeError, RecursionError) as error:
                    if may_be_cut and not raw.endswith(b"\n") and raw.startswith(b"{"):
                        self.rest = raw
                        return
                    raise line_error(path, number, _reason(error) + hint) from None
                self.size, self.ended = start + len(raw), raw.endswith(b"\n")
                if fields is not None:
                    yield JsonLine(number, fields, start)


def read_lines(path: Path, *, may_be_cut: bool, hint: str = "") -> JsonLines:
    """Read a whole file; see `JsonLines.read`."""
    content = JsonLines()
    content.lines = tuple(content.read(path, may_be_cut=may_be_cut, hint=hint))
    return content


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


def file_kind(path: str | Path) -> str | None:
    """Detect the kind of a file from its first bytes; None if it is unknown.

    Raises:
        OSError: the file cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(_HEAD).removeprefix(_BOM).decode(errors="replace")
    if (named := _KIND.match(head)) is not None:
        return named[1]
    return "array" if head.lstrip().startswith("[") else None


def foreign_kind(path: str | Path, *, wanted: str) -> str | None:
    """If a file is known to be of another kind, describe the kind and name the command for it; else return None.

    Raises:
        OSError: the file cannot be read.
    """
    kind = file_kind(path)
    return None if kind is None or kind == wanted else _KINDS.get(kind)


def read_records(
    path: Path, header: type[_HeaderT], *, is_not: str, advice: str, hint: str
) -> tuple[_HeaderT | None, JsonLines]:
    """Read a file whose first line is a header, which is None if the file does not contain it yet.

    Args:
        path: the file; a crash may have cut its last line.
        header: the class of the header, with the fields `kind` and `schema_version`.
        is_not: the beginning of the error about another file, such as `"is not a file of samples"`.
        advice: what to do about another file.
        hint: how to repair an invalid line.

    Raises:
        OSError: the file cannot be read.
        SettingError: the file is of another kind or of another version, or it is broken.
    """
    kind, version = (header.model_fields[name].default for name in ("kind", "schema_version"))
    other = foreign_kind(path, wanted=kind)
    named = "" if other is None else f" (it is {other})"
    refused = SettingError(f"{path} {is_not} and was not changed{named}: {advice}")
    try:
        content = read_lines(path, may_be_cut=True, hint=hint)
    except SettingError:
        if file_kind(path) != kind:
            raise refused from None
        raise
    if not content.lines:
        start = f'{{"kind":"{kind}"'.encode()
        if not content.rest.startswith(start[: len(content.rest)]):
            raise refused
        return None, content
    first = content.lines[0]
    if first.fields.get("kind") != kind:
        raise refused
    if (found := first.fields.get("schema_version")) != version:
        words = f"was written by another version of cosd-api (schema_version {found}, not {version})"
        raise SettingError(f"{path} {words}: {advice}")
    try:
        return header.model_validate(first.fields), content
    except ValidationError as error:
        reason = f"its header is broken: {problem(error, [*header.model_fields])}"
        raise line_error(path, first.number, reason) from None


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

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def write(self, line: str) -> None:
        """Append one line."""
        self._file.write(line.encode() + b"\n")
        self._file.flush()


_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL})
"""Errors from a file system that does not support locks."""


def lock(file: BinaryIO) -> bool:
    """Lock an open file until it is closed or its process ends; False if another process holds the lock."""
    try:
        if sys.platform == "win32":
            file.seek(2**31 - 2)  # far beyond the text, because other processes cannot read a locked byte
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True
