"""Reading and writing the text of a settings file: YAML or JSON, with the line number of every field.

The reader avoids surprises of YAML 1.1: as in YAML 1.2, unquoted `yes` and `no` are text, and `1e-3` is a number.
Duplicate names, anchors, aliases and tags are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from cosd_api.errors import SettingError

__all__ = ["Document", "FieldPath", "as_json", "as_yaml", "read_document"]

FieldPath = tuple[str | int, ...]
"""Path of a value in a document, made of field names and list indices."""

_MOST_BYTES = 1_000_000
_MOST_DIGITS = 100
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf"), math.inf),
    "-.inf": -math.inf,
}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed settings file.

    Attributes:
        value: the content as mappings, lists and plain values.
        lines: the line number of each value, counted from 1 and keyed by the value's path; empty for JSON.
        prefix: path of this document within the file, if it is only a part of the file.
    """

    value: Any
    lines: Mapping[FieldPath, int] = field(default_factory=dict[FieldPath, int])
    prefix: FieldPath = ()

    def line(self, path: FieldPath) -> int | None:
        """The line number of the value at a path or, if that is unknown, of the innermost value around it."""
        around = (path[:size] for size in range(len(path), -1, -1))
        return next((self.lines[one] for one in around if one in self.lines), None)

    def within(self, *path: str | int) -> Document:
        """Return the value at a path as a document of its own."""
        value = self.value
        for one in path:
            value = value[one]
        size = len(path)
        lines = {at[size:]: line for at, line in self.lines.items() if at[:size] == path}
        return Document(value, lines, (*self.prefix, *path))


def read_document(path: Path) -> Document:
    """Read a YAML or JSON file.

    Raises:
        OSError: the file cannot be read.
        SettingError: the file is invalid; the message names the file and, if known, the line.
    """
    if path.is_dir():
        raise SettingError(f"{path} is a folder, and a settings file is one file")
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise SettingError(f"{path} has more than {_MOST_BYTES // 1_000_000} MB: that is not a settings file")
    try:
        text = data.decode("utf-8-sig")  # some editors add a byte order mark
        return _json(text) if text.lstrip().startswith("{") else _yaml(text)
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 text at byte {error.start}") from None
    except RecursionError:
        raise SettingError(f"{path}: it is nested too deep") from None
    except _DocumentFaultError as fault:
        where = f"{path}, line {fault.line}" if fault.line else str(path)
        raise SettingError(f"{where}: {fault}") from None


class _DocumentFaultError(Exception):
    """A fault in a document's text. The message quotes no values, because a value may be a secret key."""

    def __init__(self, words: str, line: int | None = None) -> None:
        super().__init__(words)
        self.line = line


def _json(text: str) -> Document:
    try:
        return Document(json.loads(text, object_pairs_hook=_once, parse_int=_whole))
    except json.JSONDecodeError as error:
        words = f"not valid JSON: {error.msg}. A file that begins with {{ is read as JSON"
        raise _DocumentFaultError(words, error.lineno) from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _DocumentFaultError(f"the field {name!r} is there twice; keep one of them")
        found[name] = value
    return found


def _whole(text: str, line: int | None = None) -> int:
    if len(text) > _MOST_DIGITS:
        words = f"a number has more than {_MOST_DIGITS} digits; is it text, which needs quotes?"
        raise _DocumentFaultError(words, line)
    return int(text)


def _yaml(text: str) -> Document:
    lines: dict[FieldPath, int] = {}
    try:
        root = cast("Any", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        return Document(None if root is None else _value(root, (), lines, set()), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = re.sub(r"'[^']{12,}'", "...", error.problem or "it cannot be read")
        words = f"not valid YAML: {problem}. Is a line indented wrongly, or does a text need quotes?"
        raise _DocumentFaultError(words, None if mark is None else mark.line + 1) from None
    except yaml.YAMLError:
        raise _DocumentFaultError("not valid YAML: it has characters that YAML does not allow") from None


def _value(node: Any, path: FieldPath, lines: dict[FieldPath, int], seen: set[int]) -> Any:
    """Convert a YAML node to its value; record the line numbers of the node and of the values within it."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if id(node) in seen:
        raise _DocumentFaultError("anchors and aliases (& and *) are not read: write the value in both places", line)
    seen.add(id(node))
    standard, _, kind = node.tag.rpartition(":")
    if standard != "tag:yaml.org,2002" or "/" in kind:
        raise _DocumentFaultError("tags (!) are not read: leave it out", line)
    if node.id == "sequence":
        return [_value(one, (*path, at), lines, seen) for at, one in enumerate(node.value)]
    if node.id == "scalar":
        return node.value if node.style else _plain(node.value, line)
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            raise _DocumentFaultError("the name of a field must be a word", line)
        if (*path, key.value) in lines:
            raise _DocumentFaultError(f"the field {key.value!r} is there twice; keep one of them", line)
        lines[*path, key.value] = line
    return {key.value: _value(one, (*path, key.value), lines, seen) for key, one in node.value}


def _plain(text: str, line: int | None = None) -> Any:
    """Convert an unquoted text to its value."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return _whole(text, line)
    return float(text) if _NUMBER.fullmatch(text) else text


# ------------------------------------------------------------------------------------------------------------- writing


def as_json(value: Mapping[str, Any]) -> str:
    """Format a document as JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def as_yaml(value: Mapping[str, Any], comment: str = "") -> str:
    """Format a document as YAML, preceded by a comment. Parsers of YAML 1.1 and YAML 1.2 read the same values."""
    head = "".join(f"{f'# {line}'.rstrip()}\n" for line in comment.splitlines())
    return head + str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # its stubs have no base class
    """Writes lists indented, no aliases (they are not read), and quotes where another parser would see no text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - of PyYAML
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        bare = text.isprintable() and not _INTEGER.fullmatch(text) and _plain(text) == text  # PyYAML may quote it, too
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if bare else '"')


_Dumper.add_representer(str, _Dumper.represent_text)
