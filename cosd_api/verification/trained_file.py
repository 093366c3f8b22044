"""Files of trained verifiers. Each contains one JSON object, which is checked because its source may be untrusted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import cast

from pydantic_core import from_json

from cosd_api.errors import SettingError

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 40
_repr.maxlevel = 2


@dataclass(frozen=True, slots=True)
class TrainedFile:
    """One kind of file, with phrases that describe it in error messages.

    Attributes:
        thing: a phrase for the content of the file, such as `"a tree"`.
        kind: the value of the file's field `kind`.
        described: a sentence that describes such a file and the program that writes it.
        made_by: a sentence that names the command that creates such a file from samples.
        fields: the names of all allowed fields.
        most_bytes: the largest size, in bytes, of a file that is parsed.
        bounded: a sentence that says why no valid file is larger than `most_bytes`.
        newest: the schema version that is written; earlier versions can be read, too.
    """

    thing: str
    kind: str
    described: str
    made_by: str
    fields: Sequence[str]
    most_bytes: int
    bounded: str
    newest: int = 1

    def read(self, path: Path) -> dict[str, object]:
        """Read the object from a file. Its kind, its version and its fields' names are checked, but not the values.

        A file of more than `most_bytes` bytes is not parsed, and JSON with more than 200 levels of nesting is refused.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file does not contain a JSON object of this kind and version; the message names the file.
        """
        if path.is_dir():
            raise SettingError(f"{path} is a folder, and {self.described}")
        with path.open("rb") as file:
            data = file.read(self.most_bytes + 1)
        try:
            return self._object(data)
        except _FaultError as fault:
            raise SettingError(f"{path} is not {self.thing}: {fault}") from None

    def _object(self, data: bytes) -> dict[str, object]:
        if len(data) > self.most_bytes:
            raise _FaultError(f"it has more than {self.most_bytes / 1_000_000:g} MB, and {self.bounded}")
        try:
            found: object = from_json(data.decode("utf-8-sig"))  # some editors write a byte order mark before the text
        except UnicodeDecodeError as error:
            raise _FaultError(f"it is not UTF-8 text at byte {error.start}; {self.described}") from None
        except ValueError as error:
            words = f"it holds samples; {self.made_by}" if _is_samples(data) else f"{self.described} ({error})"
            raise _FaultError(f"it is not one JSON document; {words}") from None
        if not isinstance(found, dict):
            raise _FaultError(f"it holds {shown(found)}; {self.described}")
        fields = cast("dict[str, object]", found)
        kind, version = fields.get("kind", self.kind), fields.get("schema_version", 1)
        if kind != self.kind:
            raise _FaultError(f"its kind is {shown(kind)}, not {self.kind!r}")
        if version not in range(1, self.newest + 1) or isinstance(version, bool):
            newer = isinstance(version, int) and version > self.newest
            advice = "update cosd-api, or train it again" if newer else "train it again"
            reads = " and ".join(map(str, range(1, self.newest + 1)))
            words = f"its schema_version is {shown(version)}, and this version of cosd-api reads {reads}"
            raise _FaultError(f"{words}: {advice}")
        if unknown := fields.keys() - {*self.fields}:
            raise _FaultError(f"it has an unknown field {shown(min(unknown))}")
        return fields


class _FaultError(Exception):
    """A file is invalid; the message is a clause that says why."""


def shown(value: object) -> str:
    """Shorten a value from a file for an error message."""
    return _repr.repr(value)


def _is_samples(data: bytes) -> bool:
    return b'"cosd-samples"' in data.partition(b"\n")[0][:200]


def write_whole(path: Path, text: str) -> None:
    """Write a file completely or not at all: a reader finds either the old text or the new text, never part of it.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    target = path.resolve()  # a symbolic link is kept, and the file to which it points is replaced
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")  # a device or a pipe cannot be replaced
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
