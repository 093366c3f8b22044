"""The structure of a settings file: its fields, their types, and the schema for editors."""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, Self, cast, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    Tag,
    create_model,
    field_validator,
    model_validator,
)
from pydantic import Field as ModelField
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cosd_api.methods.base import METHODS, Method, method_class
from cosd_api.settings import MOST_ALTERNATIVES, AnswerLimits, OnBudget, Tuning
from cosd_api.verification import KINDS, TRAINED
from cosd_providers.messages import Role
from cosd_providers.strategies import Strategy

__all__ = [
    "INFINITY",
    "USE_ENVIRONMENT",
    "AnyMethod",
    "AnyVerifier",
    "LimitsConfig",
    "MethodConfig",
    "ServerConfig",
    "ServerLimitsConfig",
    "TrainedConfig",
    "TuningConfig",
    "is_trained",
    "method_hints",
    "method_shapes",
    "verifier_kinds",
]

_STRICT = ConfigDict(frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True)
USE_ENVIRONMENT = "Put it into an environment variable, and the variable's name here: api_key_env: MY_KEY"
"""Advice in error messages about a secret key in a settings file."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_KEYLESS = "^[^@?]*$"
INFINITY = "Infinity"
"""The text that means infinity in JSON files, for settings of a verifier that have no upper bound."""


def _at_least(least: int, default: Any) -> Any:
    """A field whose minimum is only shown in the schema, for editors; other code checks the value."""
    return ModelField(default=default, json_schema_extra={"minimum": least})


_Text = Annotated[str, ModelField(json_schema_extra={"minLength": 1})]


class ServerLimitsConfig(BaseModel):
    """The rate limits of one server; see `cosd_providers.Limits`."""

    model_config = _STRICT

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class MessageConfig(BaseModel):
    """A message of a conversation."""

    model_config = _STRICT

    role: Role
    content: str


class ServerConfig(BaseModel):
    """A model on a server: those arguments of `connect` that a file can contain, or only the server's URL.

    Attributes:
        url: URL of the server.
        api_key_env: environment variable that contains the server's API key; by default, the one that `connect` uses.
        tokenizer: path of the tokenizer, relative to the settings file's folder, or `"tiktoken:<encoding>"`.
        chat_template: path of a template, relative to the settings file's folder, or the text of a template.
        report: path of a saved result of `probe`, relative to the settings file's folder.
        system: a system message that only this model gets.
        messages: further messages that only this model gets, before every conversation.
    """

    model_config = _STRICT

    url: str
    engine: str | None = None
    model: str | None = None
    api_key_env: str | None = ModelField(default=None, json_schema_extra={"pattern": f"^{_VARIABLE.pattern}$"})
    api: Literal["completions", "chat", "messages"] | None = None
    dialect: str | None = None
    strategy: Strategy | None = None
    context: int | None = None
    add_special_tokens: bool | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    report: str | None = None
    timeout: float | None = None
    limits: ServerLimitsConfig | None = None
    extra_body: dict[str, JsonValue] | None = None
    system: str | None = None
    messages: list[MessageConfig] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, given: object) -> object:
        return {"url": given} if isinstance(given, str) else given

    @field_validator("url")
    @classmethod
    def _holds_no_key(cls, url: str) -> str:
        for mark, words in (("@", "the URL holds credentials"), ("?", "the URL has a '?', after which keys may stand")):
            if mark in url:
                raise ValueError(f"{words}, and keys are never kept in a settings file. {USE_ENVIRONMENT}")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _is_a_variable(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            words = "it must be the name of an environment variable, such as MY_KEY"
            raise ValueError(f"{words} (what is there is not shown: it may be a key)")
        return name

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        own = handler(schema)
        url = {"type": "string", "description": "The URL of a server.", "pattern": _KEYLESS}
        handler.resolve_ref_schema(own)["properties"]["url"]["pattern"] = _KEYLESS
        return {"anyOf": [url, own]}


class TrainedConfig(BaseModel):
    """A trained verifier, which is stored in a file of its own.

    Attributes:
        file: path of the verifier's file, relative to the settings file's folder.
    """

    model_config = _STRICT

    kind: Annotated[str, ModelField(json_schema_extra={"enum": [*TRAINED]})]
    file: str


class MethodConfig(BaseModel):
    """A method with its own settings; for a trained part, the setting is the path of its file.

    Each method has its own subclass, with the method's settings as fields.
    """

    model_config = _STRICT

    name: str

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given

    def chosen(self) -> dict[str, Any]:
        """The settings that were given."""
        return {name: getattr(self, name) for name in self.model_fields_set - {"name"}}

    def files(self) -> dict[str, str]:
        """The paths of the method's trained parts, keyed by the names of the settings."""
        hints = method_hints(method_class(self.name))
        return {name: value for name, value in self.chosen().items() if is_trained(hints[name])}

    @model_validator(mode="after")
    def _makes_a_method(self) -> Self:
        """Check the settings by creating the method, unless this would require reading a file."""
        kind = method_class(self.name)
        hints = method_hints(kind)
        if not any(is_trained(hints[one.name]) for one in fields(kind)):
            kind(**self.chosen())
        return self


class TuningConfig(BaseModel):
    """The fields of `Tuning`."""

    model_config = _STRICT

    hedge: int = _at_least(0, 0)
    in_flight: int = _at_least(1, 1)
    max_ahead: int | None = _at_least(1, None)

    @model_validator(mode="after")
    def _is_tuning(self) -> Self:
        self.tuning()
        return self

    def tuning(self) -> Tuning:
        """Create the `Tuning`."""
        return Tuning(**self.model_dump())


class LimitsConfig(BaseModel):
    """The default limits for every answer; see `Fusion.stream`."""

    model_config = _STRICT

    max_tokens: int | None = _at_least(1, None)
    stop: _Text | list[_Text] | None = None
    timeout: float | None = ModelField(default=None, json_schema_extra={"exclusiveMinimum": 0})
    max_requests: int | None = _at_least(1, None)
    max_billed_tokens: int | None = _at_least(1, None)
    on_budget: OnBudget | None = None
    seed: int | None = _at_least(0, None)
    alternatives: int | None = ModelField(default=None, json_schema_extra={"minimum": 0, "maximum": MOST_ALTERNATIVES})

    @model_validator(mode="after")
    def _are_limits(self) -> Self:
        AnswerLimits.checked(**cast("Any", self.chosen()))
        return self

    def chosen(self) -> dict[str, Any]:
        """The limits that were given."""
        return self.model_dump(exclude_none=True)


def is_trained(hint: object) -> bool:
    """Test from a setting's type whether the setting is a trained part, which can be loaded and saved."""
    several = get_args(hint) if isinstance(hint, types.UnionType) or get_args(hint) else (hint,)
    return any(isinstance(one, type) and hasattr(one, "load") and hasattr(one, "save") for one in several)


@cache
def method_hints(kind: type[Method]) -> dict[str, Any]:
    """The types of a method's settings."""
    return get_type_hints(kind)


def _tuple(given: object) -> object:
    """Convert a list to a tuple, because methods use tuples but files contain lists; return other values unchanged."""
    return tuple(cast("list[object]", given)) if isinstance(given, list) else given


def _method_shape(name: str) -> type[MethodConfig]:
    """Create the class that represents a method's settings in a file."""
    kind = method_class(name)
    hints, own = method_hints(kind), [one for one in fields(kind) if one.name not in kind.hoisted]
    shown: dict[str, Any] = {"name": (Literal[name], ...)}
    for one in own:
        if is_trained(hints[one.name]):
            shown[one.name] = (str, ModelField(description="A path from the settings file's folder."))
        else:
            shown[one.name] = (Annotated[hints[one.name], BeforeValidator(_tuple)], one.default)
    words = (kind.__doc__ or "").strip().partition("\n")[0]
    title = re.sub(r"\W", " ", name).title().replace(" ", "")
    return create_model(f"{title}Settings", __base__=MethodConfig, __doc__=words, **shown)


@cache
def method_shapes() -> Mapping[str, type[MethodConfig]]:
    """The classes that represent methods' settings in a file, keyed by the methods' names."""
    return {name: _method_shape(name) for name in METHODS}


def _named(given: object) -> object:
    """Read the name of a method from its entry in a file."""
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given).get("name")
    return getattr(given, "name", given)


class AnyMethod:
    """The type of any method's settings. The type is created at its first use, because that imports every method."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        tagged = tuple(Annotated[shape, Tag(name)] for name, shape in method_shapes().items())
        union: Any = Annotated[typing.Union[tagged], Discriminator(_named)]  # noqa: UP007
        return handler.generate_schema(union)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        alone = [name for name, shape in method_shapes().items() if not _required(shape)]
        return {"anyOf": [{"enum": alone, "description": "A method, with its defaults."}, handler(schema)]}


def _required(shape: type[MethodConfig]) -> list[str]:
    """The settings of a method that have no default."""
    return [name for name, field in shape.model_fields.items() if field.is_required() and name != "name"]


def verifier_kinds() -> dict[str, type[BaseModel]]:
    """The classes that represent verifiers in a file, keyed by their kind."""
    plain = {kind: one for kind, one in KINDS.items() if kind not in TRAINED}
    return {**plain, **dict.fromkeys(TRAINED, TrainedConfig)}


def _kind(given: object) -> object:
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given).get("kind")
    return getattr(given, "kind", given)


def _of_kind(given: object) -> object:
    fields = {"kind": given} if isinstance(given, str) else given
    if isinstance(fields, Mapping):
        several = cast("Mapping[str, object]", fields).items()
        fields = {name: math.inf if one == INFINITY else one for name, one in several}  # JSON has no infinity
    return fields


class AnyVerifier:
    """The type of any verifier in a file. A plain text is the name of a kind, with its default settings."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        tagged = tuple(Annotated[shape, Tag(kind)] for kind, shape in verifier_kinds().items())
        union: Any = Annotated[typing.Union[tagged], Discriminator(_kind)]  # noqa: UP007
        return handler.generate_schema(Annotated[union, BeforeValidator(_of_kind)])

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        alone = [kind for kind in verifier_kinds() if kind not in TRAINED]
        union = handler(schema)
        for one in union["oneOf"]:
            for field in handler.resolve_ref_schema(one)["properties"].values():
                if field.get("type") == "number" and "maximum" not in field:
                    bounds = {key: field.pop(key) for key in [*field] if key not in ("title", "default", "description")}
                    field["anyOf"] = [bounds, {"const": INFINITY}]
        return {"anyOf": [{"enum": alone, "description": "A kind, with its defaults."}, union]}
