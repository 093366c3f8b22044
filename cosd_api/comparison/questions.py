"""Questions of a comparison and their keys; read them from files of `cosd collect` or other JSON lines files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosd_api import Example, SettingError
from cosd_api.json_lines import line_error, problem, read_lines
from cosd_api.training.dataset import check_examples, read_examples

_TEXTS = ("prompt", "answer", "target", "group")
_NAMED = ". If it has another name there, say which: --map prompt=question --map answer=gold"


class _Twin(Example):
    """A question with the same prompt and answer as an earlier question, but graded differently."""

    @property
    def key(self) -> str:
        """Identity of the question: SHA-256 (hex) of all its fields except the group."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json", exclude={"group"})).encode()).hexdigest()


def questions_by_key(given: Iterable[Example | Mapping[str, Any]]) -> dict[str, Example]:
    """Map keys to questions, in the order given; only the first of several equal questions is kept.

    Raises:
        SettingError: there are no questions, or a question is invalid.
    """
    found: dict[str, Example] = {}
    for one in check_examples(given, graded=True).values():
        question = _Twin(**{name: getattr(one, name) for name in Example.model_fields}) if one.key in found else one
        found[question.key] = question
    return found


def group_of(example: Example) -> str:
    """The key of the group that a question belongs to; without `group`, the question is its own group."""
    return example.key if example.group is None else f"group {example.group}"


def repeated_prompts(examples: Iterable[Example]) -> int:
    """Count the questions that share their prompt with another question; questions with a group are ignored."""
    count = Counter(prompt_text(one) for one in examples if one.group is None)
    return sum(number for number in count.values() if number > 1)


def prompt_text(example: Example) -> str:
    """Format the prompt as one text; for a conversation, with all messages and their roles."""
    if isinstance(example.prompt, str):
        return example.prompt
    return "\n\n".join(f"{one.role}: {one.content}" for one in example.prompt)


def mapping_from(given: list[str]) -> dict[str, str]:
    """Parse entries of the form `FIELD=NAME`: a field of an example, and the field's name in the file.

    Raises:
        SettingError: an entry does not have this form, or its `FIELD` is not a field of an example.
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
    """Read the examples in a JSON lines file.

    Args:
        path: the file.
        mapping: the names that fields of an example have in the file, keyed by field. Fields that it does not mention
            keep their names. With a mapping, numbers are read as text, and all other fields of the file are ignored.

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
    """Convert a number to text; return any other value unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
