"""Files of trained verifiers. Each contains one JSON object, which is checked because its source may be untrusted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from cosd_api.errors import SettingError

_ModelT = TypeVar("_ModelT", bound=BaseModel)
_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 40
_repr.maxlevel = 2


@dataclass(frozen=True, slots=True)
class TrainedFile:
    """One kind of file.

    Attributes:
        thing: a phrase for the content of the file, such as `"a tree"`.
        kind: the value of the file's field `kind`.
        command: the command that creates such a file from samples.
        most_bytes: the largest size, in bytes, of a file that is parsed.
        version: the schema version.
    """

    thing: str
    kind: str
    command: str
    most_bytes: int
    version: int = 1

    def load(self, model: type[_ModelT], path: Path) -> _ModelT:
        """Read a verifier from a file.

        A file of more than `most_bytes` bytes is not parsed, and JSON with more than 200 levels of nesting is refused.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file does not contain a verifier of this kind and version; the message names the file.
        """
        if path.is_dir():
            raise SettingError(f"{path} is a folder, and {self._described}")
        with path.open("rb") as file:
            data = file.read(self.most_bytes + 1)
        try:
            return model.model_validate(self._fields(data))
        except _FaultError as fault:
            words = str(fault)
        except ValidationError as error:
            words = _first_fault(error)
        raise SettingError(f"{path} is not {self.thing}: {words}")

    @property
    def _described(self) -> str:
        return f"{self.thing} is one JSON file, as {self.command} writes it"

    def _fields(self, data: bytes) -> dict[str, object]:
        """Parse the file's object; check its kind and its version, but not the other fields."""
        if len(data) > self.most_bytes:
            raise _FaultError(f"it has more than {self.most_bytes / 1_000_000:g} MB")
        try:
            found: object = from_json(data.decode("utf-8-sig"))  # some editors write a byte order mark before the text
        except UnicodeDecodeError as error:
            raise _FaultError(f"it is not UTF-8 text at byte {error.start}; {self._described}") from None
        except ValueError as error:
            words = f"{self._described} ({error})"
            if b'"cosd-samples"' in data.partition(b"\n")[0][:200]:
                words = f"it holds samples; {self.command} makes {self.thing} of them"
            raise _FaultError(f"it is not one JSON document; {words}") from None
        if not isinstance(found, dict):
            raise _FaultError(f"it holds {_repr.repr(found)}; {self._described}")
        fields = cast("dict[str, object]", found)
        kind, version = fields.get("kind", self.kind), fields.get("schema_version", self.version)
        if kind != self.kind:
            raise _FaultError(f"its kind is {_repr.repr(kind)}, not {self.kind!r}")
        if version != self.version:
            words = f"its schema_version is {_repr.repr(version)}, and this version of cosd-api reads {self.version}"
            raise _FaultError(f"{words}: update cosd-api, or train it again")
        return fields


class _FaultError(Exception):
    """A file is invalid; the message is a clause that says why."""


def _first_fault(error: ValidationError) -> str:
    """Describe the first error in a file's fields, in words."""
    first = error.errors(include_url=False)[0]
    name, words = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if not name:
        return words
    if first["type"] == "missing":
        return f"its {name} is missing"
    if first["type"] == "extra_forbidden":
        return f"it has an unknown field {name!r}"
    return f"its {name} is {_repr.repr(first['input'])}: {words[:1].lower()}{words[1:]}"


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
