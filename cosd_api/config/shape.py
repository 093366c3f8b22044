"""The structure of a settings file: its fields, their types, and the schema for editors."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    Tag,
    create_model,
    model_validator,
)
from pydantic import Field as ModelField
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cosd_api.methods.base import METHODS, Method, method_class, method_named
from cosd_api.methods.loader import is_address
from cosd_api.settings import AnswerLimits, declared_settings
from cosd_api.verification import KINDS, TRAINED
from cosd_providers.messages import Role
from cosd_providers.strategies import Strategy

__all__ = [
    "USE_ENVIRONMENT",
    "AnyMethod",
    "AnyVerifier",
    "LimitsConfig",
    "MethodConfig",
    "SectionConfig",
    "ServerConfig",
    "ServerLimitsConfig",
    "TrainedConfig",
    "is_trained",
    "method_hints",
    "method_shapes",
    "verifier_kinds",
]

USE_ENVIRONMENT = "Put it into an environment variable, and the variable's name here: api_key_env: MY_KEY"
"""Advice in error messages about a secret key in a settings file."""
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]{0,99}"
_KEYLESS = "^[^@?]*$"
_INFINITY = "Infinity"  # JSON has no infinity


class SectionConfig(BaseModel):
    """A mapping in a settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True)

    check: ClassVar[Callable[..., object]] = dict
    """Function that receives the chosen settings and raises an error if they are invalid."""

    def chosen(self) -> dict[str, Any]:
        """The settings that were given."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        type(self).check(**self.chosen())
        return self


def _section(name: str, kind: type, check: Callable[..., object], **types: Any) -> type[SectionConfig]:
    """Create the class of a section whose fields are the declared settings of a dataclass; all are optional.

    The schema shows the bounds of the values, and `check` checks them. `types` replaces the types of some fields.
    """
    optional: dict[str, Any] = {
        field: (Annotated[types.get(field, one.type) | None, one.about], None)
        for field, one in declared_settings(kind).items()
    }
    made = create_model(name, __base__=SectionConfig, __doc__=f"The settings of `{kind.__name__}`.", **optional)
    made.check = check
    return made


_Text = Annotated[str, ModelField(json_schema_extra={"minLength": 1})]
LimitsConfig = _section("LimitsConfig", AnswerLimits, AnswerLimits.checked, stop=_Text | list[_Text])
"""The section `limits`, which contains default limits for every answer; see `Fusion.stream`."""


class ServerLimitsConfig(SectionConfig):
    """The rate limits of one server; see `cosd_providers.Limits`."""

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class MessageConfig(SectionConfig):
    """A message of a conversation."""

    role: Role
    content: str


def _without_key(url: str) -> str:
    for mark, words in (("@", "the URL holds credentials"), ("?", "the URL has a '?', after which keys may stand")):
        if mark in url:
            raise ValueError(f"{words}, and keys are never kept in a settings file. {USE_ENVIRONMENT}")
    return url


def _variable(name: str) -> str:
    if not re.fullmatch(_VARIABLE, name):
        words = "it must be the name of an environment variable, such as MY_KEY"
        raise ValueError(f"{words} (what is there is not shown: it may be a key)")
    return name


class ServerConfig(SectionConfig):
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

    url: Annotated[str, AfterValidator(_without_key), ModelField(json_schema_extra={"pattern": _KEYLESS})]
    engine: str | None = None
    model: str | None = None
    api_key_env: (
        Annotated[str, AfterValidator(_variable), ModelField(json_schema_extra={"pattern": f"^{_VARIABLE}$"})] | None
    ) = None
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

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        url = {"type": "string", "description": "The URL of a server.", "pattern": _KEYLESS}
        return {"anyOf": [url, handler(schema)]}


class TrainedConfig(SectionConfig):
    """A trained verifier, which is stored in a file of its own.

    Attributes:
        file: path of the verifier's file, relative to the settings file's folder.
    """

    kind: Annotated[str, ModelField(json_schema_extra={"enum": [*TRAINED]})]
    file: str


class MethodConfig(SectionConfig):
    """A method with its own settings; for a trained part, the setting is the path of its file.

    Each method has its own subclass, with the method's settings as fields.
    """

    name: str

    def chosen(self) -> dict[str, Any]:
        """The settings that were given."""
        return {name: getattr(self, name) for name in self.model_fields_set - {"name"}}

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        """Check the settings by creating the method, unless this would require reading a file."""
        kind = method_class(self.name)
        if not any(map(is_trained, method_hints(kind).values())):
            kind(**self.chosen())
        return self


def is_trained(hint: object) -> bool:
    """Test from a setting's type whether the setting is a trained part, which can be loaded and saved."""
    several = get_args(hint) if isinstance(hint, types.UnionType) or get_args(hint) else (hint,)
    return any(isinstance(one, type) and hasattr(one, "load") and hasattr(one, "save") for one in several)


@cache
def method_hints(kind: type[Method]) -> dict[str, Any]:
    """The types of a method's settings, without those that belong to `Fusion`, too."""
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.name not in kind.hoisted}


def _tuple(given: object) -> object:
    """Convert a list to a tuple, because methods use tuples but files contain lists; return other values unchanged."""
    return tuple(cast("list[object]", given)) if isinstance(given, list) else given


def _method_shape(name: str) -> type[MethodConfig]:
    """Create the class that represents a method's settings in a file."""
    kind = method_class(name)
    shown: dict[str, Any] = {"name": (Literal[name], ...)}
    for one in fields(kind):
        if (hint := method_hints(kind).get(one.name)) is None:
            continue
        if is_trained(hint):
            shown[one.name] = (str, ModelField(description="A path from the settings file's folder."))
        else:
            shown[one.name] = (Annotated[hint, BeforeValidator(_tuple)], one.default)
    words = (kind.__doc__ or "").strip().partition("\n")[0]
    title = re.sub(r"\W", " ", name).title().replace(" ", "")
    return create_model(f"{title}Settings", __base__=MethodConfig, __doc__=words, **shown)


class FileMethodConfig(MethodConfig):
    """A method in a file of its own, with its settings; the path is relative to the settings file's folder."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, ModelField(json_schema_extra={"pattern": r"\.py:\w+$"})]

    def chosen(self) -> dict[str, Any]:
        """The settings that were given."""
        return {name: _tuple(one) for name, one in super().chosen().items()}

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        method_named(self.name, **self.chosen())
        return self


@cache
def method_shapes() -> Mapping[str, type[BaseModel]]:
    """The classes that represent methods' settings in a file, keyed by the methods' names."""
    return {**{name: _method_shape(name) for name in METHODS}, FILE: FileMethodConfig}


@cache
def verifier_kinds() -> Mapping[str, type[BaseModel]]:
    """The classes that represent verifiers in a file, keyed by their kind."""
    plain = {kind: one for kind, one in KINDS.items() if kind not in TRAINED}
    return {**plain, **dict.fromkeys(TRAINED, TrainedConfig)}


FILE = "FILE.py:CLASS"
"""The tag of a method in a file of its own."""


@dataclass(frozen=True, slots=True)
class _NamedShape:
    """The type of a mapping whose field `tag` names one of several shapes. A name alone means the defaults.

    The type is created at its first use, because that imports every method.
    """

    tag: str
    shapes: Callable[[], Mapping[str, type[BaseModel]]]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        tagged = tuple(Annotated[shape, Tag(name)] for name, shape in self.shapes().items())
        union: Any = Annotated[Union[tagged], Discriminator(self._name)]  # noqa: UP007
        return handler.generate_schema(Annotated[union, BeforeValidator(self._read)])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        union = handler(schema)
        alone = [
            name
            for name, shape in self.shapes().items()
            if name != FILE
            and not any(one.is_required() for field, one in shape.model_fields.items() if field != self.tag)
        ]
        for one in union["oneOf"] if self.tag == "kind" else ():
            for field in handler.resolve_ref_schema(one)["properties"].values():
                if field.get("type") == "number" and "maximum" not in field:
                    bounds = {key: field.pop(key) for key in [*field] if key not in ("title", "default", "description")}
                    field["anyOf"] = [bounds, {"const": _INFINITY}]
        names = [{"enum": alone, "description": "The name alone, with its defaults."}]
        if self.tag == "name":
            names.append({"type": "string", "pattern": r"\.py:\w+$", "description": "A file, and a class in it."})
        return {"anyOf": [*names, union]}

    def _name(self, given: object) -> object:
        if isinstance(given, Mapping):
            name: object = cast("Mapping[str, object]", given).get(self.tag)
        else:
            name = getattr(given, self.tag, given)
        return FILE if isinstance(name, str) and self.tag == "name" and is_address(name) else name

    def _read(self, given: object) -> object:
        if isinstance(given, str):
            return {self.tag: given}
        if self.tag == "kind" and isinstance(given, Mapping):
            several = cast("Mapping[str, object]", given).items()
            return {name: math.inf if one == _INFINITY else one for name, one in several}
        return given


AnyMethod = _NamedShape("name", method_shapes)
"""The type of any method's settings."""
AnyVerifier = _NamedShape("kind", verifier_kinds)
"""The type of any verifier in a file."""
