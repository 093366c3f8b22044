"""The format that a user wants for an answer: the language of its text, and the value of the text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast, get_origin

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, from_json

from cosd_api.errors import SettingError
from cosd_api.structured.language import Language

__all__ = ["LarkGrammar", "ResponseFormat"]

_FORMS = (
    "a JSON schema, a pydantic model or another type, a compiled regular expression, a list of choices, "
    "a LarkGrammar, or a response_format of OpenAI's API"
)
_TYPES = ("json_schema", "json_object", "regex", "choice", "lark", "text")


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A context-free grammar in llguidance's variant of Lark, as the format of an answer.

    Attributes:
        text: the grammar. Its rule `start` describes whole answers.
    """

    text: str


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format of an answer; see `of`.

    Attributes:
        language: the texts that the answer may be.
        name: a short name for messages: the name of the model or of the schema, or the kind of format.
        record: the format as JSON, from which `of` creates it again, but for the class of a pydantic model.
    """

    language: Language
    name: str
    record: dict[str, Any] = field(compare=False)
    _type: Any = None  # the type that the user gave
    _adapter: TypeAdapter[Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, given: object) -> Self | None:
        """Create a format from what a user gives.

        Args:
            given: one of the following. None and `{"type": "text"}` mean any text, and the result is None.

                - a JSON schema, as a dictionary
                - a pydantic model, or another type that pydantic knows: a dataclass, `list[Model]`, ...
                - a compiled regular expression, which must match the whole answer
                - a list of choices, which are texts
                - a `LarkGrammar`
                - `{"type": "json_schema", "json_schema": {"schema": ...}}` or `{"type": "json_object"}`, as in
                  OpenAI's API; `{"type": "regex", "pattern": ...}`, `{"type": "choice", "choices": [...]}` or
                  `{"type": "lark", "grammar": ...}`

        Raises:
            SettingError: it is none of these, or its language is invalid or not supported.
        """
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, Mapping):
            fields = cast("Mapping[str, Any]", given)
            return cls._from_record(fields) if fields.get("type") in _TYPES else cls._schema(fields, "schema")
        if isinstance(given, re.Pattern):
            return cls._regex(_portable(cast("object", given.pattern), given.flags))
        if isinstance(given, LarkGrammar):
            return cls(Language.lark(given.text), "lark", {"type": "lark", "grammar": given.text})
        if isinstance(given, type) or get_origin(given) is not None:
            return cls._from_type(given)
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            return cls._choices(cast("Sequence[str]", given))
        words = "compile a regular expression with re.compile" if isinstance(given, str) else f"give {_FORMS}"
        raise SettingError(f"response_format is invalid: {words}, not {type(given).__name__}")

    @property
    def is_json(self) -> bool:
        """True if the answers are JSON texts."""
        return str(self.record["type"]).startswith("json")

    def parse(self, text: str) -> Any:
        """Convert the text of a whole answer to its value.

        Returns:
            an object of the given class, the value of a JSON text, or the text itself.

        Raises:
            ValueError: the text is not a whole answer of this format, or the given class refuses it.
        """
        if not self.language.after(text.encode()).accepting:
            raise ValueError("the text ends before the format allows it: was it cut short by max_tokens?")
        if self._adapter is not None:
            return self._adapter.validate_json(text)
        return from_json(text) if self.is_json else text

    def partial(self, text: str) -> Any:
        """Convert the beginning of an answer to the value so far: strings, lists and objects may be incomplete.

        Returns:
            the value of a JSON text, None if it has none yet; for other formats, the text itself. Objects are
            dictionaries, even if a class was given.
        """
        if not self.is_json:
            return text
        try:
            return from_json(text, allow_partial="trailing-strings")
        except ValueError:
            return None

    @classmethod
    def _from_record(cls, given: Mapping[str, Any]) -> Self | None:
        match given["type"]:
            case "text":
                return None
            case "json_object":
                return cls(Language.json_object(), "json_object", {"type": "json_object"})
            case "json_schema":
                inside = given.get("json_schema", given)  # OpenAI's newer API has the fields outside
                if not isinstance(inside, Mapping) or "schema" not in inside:
                    raise SettingError("response_format of the type json_schema needs json_schema with a schema inside")
                fields = cast("Mapping[str, Any]", inside)
                return cls._schema(fields["schema"], str(fields.get("name") or "schema"))
            case "choice":
                return cls._choices(_text_of(given, "choices", list))
            case "lark":
                return cls.of(LarkGrammar(_text_of(given, "grammar", str)))
            case _:
                return cls._regex(_text_of(given, "pattern", str))

    @classmethod
    def _schema(cls, schema: object, name: str, *types: Any) -> Self:  # a type and its adapter
        record = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
        return cls(Language.json_schema(schema), name, record, *types)

    @classmethod
    def _regex(cls, pattern: str) -> Self:
        return cls(Language.regex(pattern), "regex", {"type": "regex", "pattern": pattern})

    @classmethod
    def _choices(cls, texts: Sequence[str]) -> Self:
        return cls(Language.choices(texts), "choice", {"type": "choice", "choices": [*texts]})

    @classmethod
    def _from_type(cls, given: Any) -> Self:  # any type expression
        name = re.sub(r"\W+", "_", getattr(given, "__name__", "answer"))
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(given)
            schema = adapter.json_schema(schema_generator=_Writable)
        except (PydanticUndefinedAnnotation, PydanticUserError) as error:
            line = str(error).partition("\n")[0]
            raise SettingError(f"response_format: pydantic has no JSON schema of {name}: {line}") from None
        return cls._schema(schema, name, given, adapter)


class _Writable(GenerateJsonSchema):
    """Schemas of what pydantic reads, without forms that hardly a text conforms to: a decimal number is a number."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        found: JsonSchemaValue = super().decimal_schema(schema)["anyOf"][0]
        return found

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return {key: one for key, one in super().set_schema(schema).items() if key != "uniqueItems"}

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return {key: one for key, one in super().frozenset_schema(schema).items() if key != "uniqueItems"}


def _text_of(given: Mapping[str, Any], key: str, kind: type) -> Any:
    if not isinstance(given.get(key), kind):
        words = "a text" if kind is str else "a list of texts"
        raise SettingError(f"response_format of the type {given['type']} needs {key!r}, which is {words}")
    return given[key]


def _portable(pattern: object, flags: int) -> str:
    """The expression of a compiled pattern, with its flags."""
    if not isinstance(pattern, str):
        raise SettingError("response_format is invalid: compile the regular expression from text, not bytes")
    if flags & (re.ASCII | re.VERBOSE):
        raise SettingError("regex: the flags re.ASCII and re.VERBOSE are not supported; write it without them")
    letters = "".join(letter for letter, flag in (("i", re.IGNORECASE), ("s", re.DOTALL)) if flags & flag)
    return f"(?{letters}:{pattern})" if letters else pattern
