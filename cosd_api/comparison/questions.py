"""Files of questions: those of `cosd collect`, and other JSON lines, whose fields have other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosd_api.errors import SettingError
from cosd_api.training.dataset import Example, read_examples
from cosd_api.training.json_lines import line_error, problem, read_lines

__all__ = ["mapping_from", "read_questions"]

_TEXTS = ("prompt", "answer", "target")
_NAMED = ". If it has another name there, say which: --map prompt=question --map answer=gold"


def mapping_from(given: list[str]) -> dict[str, str]:
    """Names of fields as somebody wrote them: `FIELD=NAME`, the field of an example and its name in the file.

    Raises:
        SettingError: one is not written so, or names no field of an example.
    """
    found: dict[str, str] = {}
    for one in given:
        field, equals, name = one.partition("=")
        if not (field and equals and name):
            raise SettingError(f"{one!r} is not FIELD=NAME, as in prompt=question")
        if field not in Example.model_fields:
            raise SettingError(f"an example has no field {field!r}; it has {', '.join(Example.model_fields)}")
        found[field] = name
    return found


def read_questions(path: str | Path, mapping: Mapping[str, str] | None = None) -> list[Example]:
    """The examples in a JSON lines file.

    Args:
        path: the file.
        mapping: for fields of an example, their names in the file; then numbers stand for their text, fields that are
            not named are looked for by their own names, and all others are passed over.

    Raises:
        OSError: the file cannot be read.
        SettingError: the file is empty, or a line is not an example; the message names file and line.
    """
    path = Path(path)
    if not mapping:
        return read_examples(path, hint=_NAMED)
    found: list[Example] = []
    for line in read_lines(path, may_be_cut=False).lines:
        fields: dict[str, Any] = {}
        for field in Example.model_fields:
            name = mapping.get(field, field)
            if name in line.fields:
                fields[field] = _text(line.fields[name]) if field in _TEXTS else line.fields[name]
            elif field in mapping:
                has = ", ".join(line.fields) or "no fields"
                raise line_error(path, line.number, f"there is no field {name!r} for {field}; it has {has}")
        try:
            found.append(Example.model_validate(fields))
        except ValidationError as error:
            raise line_error(path, line.number, problem(error, [*Example.model_fields])) from None
    if not found:
        raise SettingError(f"{path} is empty: give a JSON object on each line")
    return found


def _text(value: object) -> object:
    """A number as text; anything else as it is."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
