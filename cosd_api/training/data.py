"""Files of JSON lines: read with the number of each line, and appended to line by line.

A line is whole when it ends in a line feed, or is JSON as it is. A crash can only cut the last one.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, cast

from pydantic import ValidationError

from cosd_api.errors import SettingError

__all__ = ["BOM", "SAMPLES", "Appender", "Line", "Lines", "kind_of", "lines_of", "problem", "what_it_is", "wrong"]

BOM = b"\xef\xbb\xbf"  # what some editors put before a text
SAMPLES: Literal["cosd-samples"] = "cosd-samples"
"""What a file of samples says that it is."""

_HEAD = 300  # bytes, in which a file says what it is
_KIND = re.compile(r'\s*\{[^{}\[\]]*?(?<!\\)"kind"\s*:\s*"([^"\\]+)"')
_LOOKS: Mapping[str, str] = {
    r"\s*\[": "array",
    r'\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"text"': "result",
    r'\s*\{\s*"prompt"': "examples",
}
_KINDS: Mapping[str, str] = {
    "tree": "a decision tree, which cosd fuse --tree takes",
    "cosd-trace": "the trace of an answer, which cosd explain takes",
    SAMPLES: "a file of samples, which cosd train-tree and cosd tune take",
    "array": "one JSON array, and not an object on each line",
    "result": "the result of a fusion, as cosd fuse --json prints it",
    "examples": "a file of examples, which cosd collect takes",
}


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


def kind_of(path: str | Path) -> str | None:
    """What a file is, by how it begins; None where that tells nothing. What is in it is not looked at.

    Raises:
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        head = file.read(_HEAD).removeprefix(BOM).decode(errors="replace")
    if (said := _KIND.match(head)) is not None:
        return said[1]
    return next((kind for looks, kind in _LOOKS.items() if re.match(looks, head)), None)


def what_it_is(kind: str | None, *, wanted: str) -> str | None:
    """What a file of some kind is and which command takes it; None where it is what is wanted, or not known."""
    return None if kind is None or kind == wanted else _KINDS.get(kind)


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
            return f"it is no JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})"
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
    found = error.errors(include_url=False, include_input=False)
    for one in found:  # of a field that is misspelt, that the right one is missing says less
        if one["type"] == "extra_forbidden" and len(one["loc"]) == 1:
            name = str(one["loc"][0])
            if near := difflib.get_close_matches(name, known, 1):
                return f"it has the unknown field {name!r}; did you mean {near[0]!r}?"
    first = found[0]
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
