"""Reading and writing the text of a settings file: YAML or JSON, with the line number of every field.

The reader avoids surprises of YAML 1.1: as in YAML 1.2, unquoted `yes` and `no` are text, and `1e-3` is a number.
Duplicate names, anchors, aliases and tags are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

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
    **dict.fromkeys((".inf", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
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
        for size in range(len(path), -1, -1):
            if path[:size] in self.lines:
                return self.lines[path[:size]]
        return None

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
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is not UTF-8 text at byte {error.start}") from None
    try:
        return _json(text) if text.lstrip().startswith("{") else _yaml(text)
    except _DocumentFaultError as fault:
        where = f"{path}, line {fault.line}" if fault.line else str(path)
        raise SettingError(f"{where}: {fault}") from None


class _DocumentFaultError(Exception):
    """A fault in a document's text. The message quotes no values, because a value may be a secret key."""

    def __init__(self, words: str, line: int | None = None) -> None:
        super().__init__(words)
        self.line = line


def _whole(text: str, line: int | None = None) -> int:
    if len(text) > _MOST_DIGITS:
        raise _DocumentFaultError(
            f"a number has more than {_MOST_DIGITS} digits; is it text, which needs quotes?", line
        )
    return int(text)


def _json(text: str) -> Document:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise _DocumentFaultError(f"the field {twice[0]!r} is there twice; keep one of them")
        return dict(pairs)

    try:
        return Document(json.loads(text, object_pairs_hook=once, parse_int=_whole))
    except json.JSONDecodeError as error:
        words = f"not valid JSON: {error.msg}. A file that begins with {{ is read as JSON"
        raise _DocumentFaultError(words, error.lineno) from None
    except RecursionError:
        raise _DocumentFaultError("it is nested too deep") from None


def _yaml(text: str) -> Document:
    yaml: Any = import_module("yaml")  # here, because a file may be JSON
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: dict[FieldPath, int] = {}
        value = None if root is None else _value(root, (), lines, set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = re.sub(r"'[^']{12,}'", "...", error.problem or "it cannot be read")
        words = f"not valid YAML: {problem}. Is a line indented wrongly, or does a text need quotes?"
        raise _DocumentFaultError(words, None if mark is None else mark.line + 1) from None
    except yaml.YAMLError:
        raise _DocumentFaultError("not valid YAML: it has characters that YAML does not allow") from None
    except RecursionError:
        raise _DocumentFaultError("it is nested too deep") from None
    return Document(value, lines)


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
    found: dict[str, Any] = {}
    for key, one in node.value:
        at = key.start_mark.line + 1
        if key.id != "scalar":
            raise _DocumentFaultError("the name of a field must be a word", at)
        if key.value in found:
            raise _DocumentFaultError(f"the field {key.value!r} is there twice; keep one of them", at)
        lines[*path, key.value] = at
        found[key.value] = _value(one, (*path, key.value), lines, seen)
    return found


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
    yaml: Any = import_module("yaml")

    def text(dumper: Any, given: str) -> Any:
        bare = given.isprintable() and _plain(given) == given  # PyYAML quotes such a text if necessary
        return dumper.represent_scalar("tag:yaml.org,2002:str", given, None if bare else '"')

    def indent(dumper: Any, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG001 - indents lists, too
        yaml.SafeDumper.increase_indent(dumper, flow, False)

    def repeat(dumper: Any, value: object) -> bool:  # noqa: ARG001 - aliases are not read
        return True

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"increase_indent": indent, "ignore_aliases": repeat})
    dumper.add_representer(str, text)
    head = "".join(f"{f'# {line}'.rstrip()}\n" for line in comment.splitlines())
    return head + str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=math.inf))
