"""A tree's file: read with care, since anybody may have written it, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from reprlib import Repr
from typing import cast

from pydantic import ValidationError
from pydantic_core import from_json

from cosd_api.errors import SettingError

__all__ = ["read_object", "words_of", "write_whole"]

_TREE = "a tree is one JSON file, as cosd train-tree and TreeVerifier.save() write it"
_FIELDS = {"kind", "schema_version", "nodes", "trained_on"}
_EXPECTED = {
    "feature": "'p' (the draft's probability) or 'q' (the assistant's)",
    "threshold": "a number",
    "left": "the index of a node",
    "right": "the index of a node",
    "value": "0 (keep) or 1 (replace)",
    "trained_on": "an object of plain JSON",
}

_shown = Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 40
_shown.maxlevel = 2


def read_object(path: Path, *, most_bytes: int, most_nodes: int) -> dict[str, object]:
    """The JSON object that a tree's file holds; what its nodes say is not looked at.

    Nothing is parsed that is larger than a tree can be, and of JSON nested more than 200 deep nothing is made.

    Raises:
        OSError: the file cannot be read.
        SettingError: it holds no JSON object, or not that of a tree of this version; the message names the file.
    """
    if path.is_dir():
        raise SettingError(f"{path} is a folder, and {_TREE}")
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        words = f"it has more than {most_bytes // 1_000_000} MB, and a tree has at most {most_nodes} nodes"
        raise SettingError(f"{path} is no tree: {words}")
    try:
        found: object = from_json(data.decode("utf-8-sig"))  # some editors put a mark before a text
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is no tree: it is not UTF-8 text at byte {error.start}; {_TREE}") from None
    except ValueError as error:
        words = "it holds samples; cosd train-tree makes a tree of them" if _is_samples(data) else f"{_TREE} ({error})"
        raise SettingError(f"{path} is no tree: it is not one JSON document; {words}") from None
    if not isinstance(found, dict):
        raise SettingError(f"{path} is no tree: it holds {_shown.repr(found)}; {_TREE}")
    fields = cast("dict[str, object]", found)
    if (lack := _another(fields, most_nodes)) is not None:
        raise SettingError(f"{path} is no tree: {lack}")
    return fields


def _is_samples(data: bytes) -> bool:
    return b'"cosd-samples"' in data.partition(b"\n")[0][:200]


def _another(fields: dict[str, object], most_nodes: int) -> str | None:
    """What it is instead, or lacks; None where it may be a tree."""
    kind, version, nodes = fields.get("kind", "tree"), fields.get("schema_version", 1), fields.get("nodes")
    if kind != "tree":
        return f"its kind is {_shown.repr(kind)}, not 'tree'"
    if version != 1 or isinstance(version, bool):
        newer = isinstance(version, int) and version > 1
        advice = "update cosd-api, or train it again" if newer else "train it again"
        return f"its schema_version is {_shown.repr(version)}, and this version of cosd-api reads 1: {advice}"
    if unknown := fields.keys() - _FIELDS:
        return f"it has an unknown field {_shown.repr(min(unknown))}"
    if not isinstance(nodes, list) or not nodes:
        return f"it has no nodes; {_TREE}"
    if (count := len(cast("list[object]", nodes))) > most_nodes:
        return f"it has {count} nodes, and at most {most_nodes} are read"
    return None


def words_of(error: ValidationError) -> str:
    """The first thing that is wrong with a tree, for people."""
    first = error.errors(include_url=False)[0]
    given = _shown.repr(first["input"])
    place = [str(one) for one in first["loc"]]
    if not place:
        return first["msg"].removeprefix("Value error, ")
    where = f"node {place[1]}" if place[0] == "nodes" and len(place) > 1 else "it"
    name = place[0] if where == "it" else "".join(place[2:3])
    if not name:
        return f"{where} is {given}, not an object"
    if first["type"] == "extra_forbidden":
        return f"{where} has an unknown field {name!r}"
    where = "" if where == "it" else f"{where}: "
    return f"{where}its {name} is {given}, not {_EXPECTED.get(name, 'what it should be')}"


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a reader finds the old text or the new one, never a part.

    Raises:
        OSError: it cannot be written; what was there is there still.
    """
    target = path.resolve()  # a link goes on pointing at the file
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")  # a device or a pipe cannot be replaced
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
