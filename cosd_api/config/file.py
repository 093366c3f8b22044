"""The settings file of a fusion: reading, checking, conversion to arguments of `Fusion`, and writing."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cosd_api.alignment import Unit
from cosd_api.config.document import Document, as_json, as_yaml, read_document
from cosd_api.config.faults import config_error, config_errors, refuse_keys
from cosd_api.config.shape import (
    AnyMethod,
    AnyVerifier,
    LimitsConfig,
    MethodConfig,
    ServerConfig,
    TrainedConfig,
    TuningConfig,
    method_shapes,
)
from cosd_api.errors import SettingError
from cosd_api.methods.base import DEFAULT_METHOD, Method, method_named
from cosd_api.settings import AnswerOptions, Asking, FusionOptions, FusionSettings, OnAssistantError
from cosd_api.verification import TRAINED, Verifier
from cosd_api.verification.trained_file import write_whole
from cosd_providers import Limits, connect
from cosd_providers.chat.templates import is_template
from cosd_providers.contract import Provider
from cosd_providers.messages import OnSpecialTokens

__all__ = ["FusionConfig", "placed", "server_of"]

_PATHS = ("tokenizer", "chat_template", "report")
_MODELS = ("draft", "assistants", "models")
_NO_FOLDER = "tiktoken:"
_OWN = ("tie", "draft_length", "ask", "on_assistant_error", "on_special_tokens")
"""Settings of a fusion that are plain values and that do not belong to its method."""
_SERVERS: WeakKeyDictionary[Provider, ServerConfig] = WeakKeyDictionary()


class FusionConfig(BaseModel):
    """The settings of a fusion, as in a settings file; `Fusion.load` reads such a file, and `Fusion.save` writes it.

    The fields have the same names as the arguments of `Fusion`. Each model is a URL or a mapping with the arguments of
    `connect`. The file contains no API keys, only the names of environment variables that contain them.

    Attributes:
        schema_version: version of the file format.
        draft: the model that writes, or the first of several equal models.
        assistants: the models that are asked.
        models: all models, instead of `draft` and `assistants`, for methods that treat all models alike.
        method: a name, or a mapping with `name` and the method's own settings.
        verifier: the verifier of CoSD: a kind, or a mapping with `kind` and either the verifier's numbers or the `file`
            of a trained verifier.
        limits: default limits for every answer.

    Raises:
        pydantic.ValidationError: a field is invalid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True)

    schema_version: Annotated[int, Field(strict=True, ge=1, le=1)] = 1
    draft: ServerConfig | None = None
    assistants: list[ServerConfig] | None = Field(default=None, min_length=1)
    models: list[ServerConfig] | None = Field(default=None, min_length=2)
    method: Annotated[MethodConfig, AnyMethod] = Field(
        default_factory=lambda: method_shapes()[DEFAULT_METHOD](name=DEFAULT_METHOD)
    )
    verifier: Annotated[Any, AnyVerifier] | None = None
    unit: Unit | None = None
    temperature: float | None = None
    tie: float | None = None
    draft_length: int | None = None
    ask: Asking = "contestable"
    on_assistant_error: OnAssistantError = "raise"
    on_special_tokens: OnSpecialTokens = "warn"
    tuning: TuningConfig = TuningConfig()
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: object) -> object:
        """Remove empty fields, such as a field whose lines are all commented out; the defaults then apply."""
        if not isinstance(given, Mapping):
            return given
        return {name: one for name, one in cast("Mapping[str, object]", given).items() if one is not None}

    @model_validator(mode="after")
    def _has_models(self) -> Self:
        if self.models is None and (self.draft is None or self.assistants is None):
            raise ValueError("it needs draft and assistants, or models if the method treats all models as equal")
        if self.models is not None and (self.draft or self.assistants):
            raise ValueError("models are the draft and the assistants: give either models, or draft and assistants")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Make the JSON schema, in which every field except the models may be empty."""
        own = handler(schema)
        found = handler.resolve_ref_schema(own)
        for name, one in found["properties"].items():
            if {"type": "null"} not in one.get("anyOf", []):
                outer = {key: one.pop(key) for key in ("default", "title", "description") if key in one}
                found["properties"][name] = {"anyOf": [one, {"type": "null"}], **outer}
        found["oneOf"] = [_needs(*_MODELS[:2]), _needs(*_MODELS[2:])]
        return own

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read and check a settings file in YAML or JSON; no request is sent.

        Paths in the file are relative to its folder.

        Raises:
            OSError: the file, or a file that it names, cannot be read.
            SettingError: the file is invalid; the message names the file, the line, the field and a remedy.
        """
        path = Path(path)
        return cls.read(path, read_document(path))

    @classmethod
    def read(cls, path: Path, document: Document) -> Self:
        """Check the settings of a fusion in a file or in a part of a file. Paths are relative to the file's folder.

        Raises:
            OSError: a file that the settings name cannot be read.
            SettingError: the settings are invalid; the message names the file, the line, the field and a remedy.
        """
        if not isinstance(document.value, dict):
            words = "it holds no fields; a fusion has draft: and assistants:"
            if not document.prefix:
                raise SettingError(f"{path} holds no fields; a settings file begins with draft: and assistants:")
            raise config_error(path, document, (), words)
        refuse_keys(path, document)
        _check_version(path, document)
        try:
            found = cls.model_validate(document.value, strict=True)._from(path.parent)  # strict, so "1" is not a number
        except ValidationError as error:
            raise config_errors(path, document, error, cls) from None
        found._check(path, document)
        return found

    def save(self, path: str | os.PathLike[str], *, comment: str = "") -> None:
        """Write the settings as YAML, or as JSON if the name ends in `.json`. A failure leaves no partial file.

        Args:
            path: path of the file. The paths of other files in the same folder are written relative to the folder.
            comment: comment to write above the settings, in YAML only.

        Raises:
            OSError: the file cannot be written; an existing file is left unchanged.
            SettingError: the settings contain a secret key, for example in `extra_body`; nothing is written.
        """
        path = Path(path)
        document = self.document()
        refuse_keys(path, Document(document))
        value = _relative(document, placed(path).parent, {"file", *_PATHS, *self.method.files()})
        write_whole(path, as_json(value) if path.suffix == ".json" else as_yaml(value, comment))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings as a document, because the classes for methods' settings are created at run time."""
        return type(self).model_validate, (self.document(),)

    def document(self) -> dict[str, Any]:
        """The settings as plain values: fields that differ from their defaults, and settings given for the method."""
        found: dict[str, Any] = {"schema_version": self.schema_version}
        plain = self.model_dump(mode="json", exclude_defaults=True, serialize_as_any=True)
        for name in type(self).model_fields:
            if name == "method":
                own = self.method.model_dump(mode="json", exclude_none=True, include={*self.method.model_fields_set})
                found[name] = own if len(own) > 1 else self.method.name
            elif name == "verifier" and self.verifier is not None:
                found[name] = self.verifier.model_dump(mode="json")
            elif name in plain:
                found[name] = plain[name]
        for name in ("draft", "assistants", "models"):
            if name in found:
                found[name] = _short(found[name])
        return found

    def options(self) -> FusionOptions:
        """The arguments of `Fusion`, without its models.

        Raises:
            OSError: the file of a trained verifier or gate cannot be read.
            SettingError: a trained verifier or gate is invalid.
        """
        found: FusionOptions = {"method": self._made(), "tuning": self.tuning.tuning()}
        for name in (*_OWN, "unit", "temperature"):
            if (value := getattr(self, name)) is not None:
                found[name] = value  # type: ignore[literal-required]
        if self.verifier is not None:
            found["verifier"] = _verifier(self.verifier)
        return found

    def answer_options(self) -> AnswerOptions:
        """The limits that the file sets for an answer."""
        return cast("AnswerOptions", self.limits.chosen())

    def servers(self, replaced: Container[str] = ()) -> dict[str, Provider | list[Provider]]:
        """Create the models as arguments for `Fusion`; no request is sent.

        Args:
            replaced: `"draft"` or `"assistant"` or both, if the caller provides these models itself; their API keys are
                not looked up.

        Raises:
            OSError: a file that a server's settings name cannot be read.
            SettingError: a server's settings are invalid, or the environment variable for its API key is not set.
        """
        several = self.models or self.assistants or []
        name = "models" if self.models else "assistants"
        named = [(f"{name}[{at}]", one) for at, one in enumerate(several)]
        if self.models and not ("draft" in replaced or "assistant" in replaced):
            return {"models": [_connected(*one) for one in named]}
        first, *others = named if self.draft is None else [("draft", self.draft), *named]
        found: dict[str, Provider | list[Provider]] = {}
        if "draft" not in replaced:
            found["draft"] = _connected(*first)
        if "assistant" not in replaced:
            found["assistant"] = [_connected(*one) for one in others]
        return found

    def _made(self) -> str | Method:
        own = self.method.chosen()
        return method_named(self.method.name, **own) if own or self.method.name != DEFAULT_METHOD else DEFAULT_METHOD

    def _check(self, path: Path, document: Document) -> None:
        """Check that the settings are consistent, and check the files that they name.

        Raises:
            SettingError: the settings are invalid, or a file is missing.
        """
        parts = (("method", self._made), ("verifier", lambda: self.verifier and _verifier(self.verifier)))
        for name, make in parts:
            try:
                make()
            except SettingError as error:
                raise config_error(path, document, (name,), str(error)) from None
            except OSError as error:
                words = (
                    f"{error.filename} cannot be read: {error.strerror}. Paths are relative to the folder of this file"
                )
                raise config_error(path, document, (name,), words) from None
        try:
            FusionSettings.checked(**self.options())
        except SettingError as error:
            raise config_error(path, document, (), str(error)) from None

    def _from(self, folder: Path) -> Self:
        """Resolve all paths relative to a folder, so that the settings can be used from anywhere."""

        def server(one: ServerConfig) -> ServerConfig:
            given = {name: value for name in _PATHS if (value := getattr(one, name))}
            texts = {"chat_template"} if is_template(given.get("chat_template", "")) else set[str]()
            return one.model_copy(update={name: _absolute(folder, given[name]) for name in given.keys() - texts})

        changed: dict[str, Any] = {"draft": self.draft and server(self.draft)}
        for name in ("assistants", "models"):
            several: list[ServerConfig] | None = getattr(self, name)
            changed[name] = several and [server(one) for one in several]
        if isinstance(self.verifier, TrainedConfig):
            changed["verifier"] = self.verifier.model_copy(update={"file": _absolute(folder, self.verifier.file)})
        trained = {name: _absolute(folder, value) for name, value in self.method.files().items()}
        changed["method"] = self.method.model_copy(update=trained)
        return self.model_copy(update={name: value for name, value in changed.items() if value is not None})


def _check_version(path: Path, document: Document) -> None:
    version = document.value.get("schema_version", 1)
    if version != 1 or isinstance(version, bool):
        newer = isinstance(version, int) and version > 1
        words = "this version of cosd-api reads 1" + (": update cosd-api" if newer else "")
        raise config_error(path, document, ("schema_version",), words)


def _absolute(folder: Path, path: str) -> str:
    return path if path.startswith(_NO_FOLDER) else str(placed(folder / path))


def placed(path: Path) -> Path:
    """Make a file's path absolute, resolving symbolic links in its folder but not a link at the file itself."""
    return path.parent.resolve() / path.name


def _relative(value: Any, folder: Path, names: Container[str]) -> Any:
    """In the fields with these names, at any depth, make paths within a folder relative to the folder."""
    if isinstance(value, list):
        return [_relative(one, folder, names) for one in cast("Sequence[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for name, one in cast("Mapping[str, Any]", value).items():
        found[name] = (
            _named_from(folder, one) if name in names and isinstance(one, str) else _relative(one, folder, names)
        )
    return found


def _named_from(folder: Path, given: str) -> str:
    if is_template(given) or not Path(given).is_absolute():
        return given
    path = placed(Path(given))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else given


def _short(given: Any) -> Any:
    """Reduce a server to its URL if it has no other settings."""
    if isinstance(given, list):
        return [_short(one) for one in cast("Sequence[Any]", given)]
    return given["url"] if len(given) == 1 else given


def _verifier(given: Any) -> Verifier:
    if isinstance(given, TrainedConfig):
        return cast("Verifier", TRAINED[given.kind].load(given.file))
    return cast("Verifier", given)


def _connected(name: str, server: ServerConfig) -> Provider:
    given: dict[str, Any] = server.model_dump(exclude_none=True, exclude={"url", "api_key_env", "limits"})
    variable = server.api_key_env
    if variable is not None:
        if not (key := os.environ.get(variable, "").strip()):
            words = f"the environment variable {variable}, which should contain its key, is not set"
            raise SettingError(f"{name}: {words}. Set it, or leave out api_key_env")
        given["api_key"] = key
    try:
        if server.limits is not None:
            given["limits"] = Limits(**server.limits.model_dump())
        provider = connect(server.url, **given)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name}: {error}") from None
    with suppress(TypeError):  # raised if the provider is not hashable
        _SERVERS[provider] = server
    return provider


def _needs(*names: str) -> JsonSchemaValue:
    """The schema of a file that names its models in these fields, and not in the other model fields."""
    given = {name: {"not": {"type": "null"}} if name in names else {"type": "null"} for name in _MODELS}
    return {"required": [*names], "properties": given}


def server_of(provider: Provider) -> ServerConfig | None:
    """Return the settings from which `FusionConfig.servers` created a provider; None for any other provider."""
    try:
        return _SERVERS.get(provider)
    except TypeError:  # a custom provider may not be hashable
        return None
