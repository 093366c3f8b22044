"""The settings file of a fusion: reading, checking, conversion to arguments of `Fusion`, and writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, ValidationError, model_validator

from cosd_api.alignment import Unit
from cosd_api.config.document import Document, as_json, as_yaml, read_document
from cosd_api.config.faults import config_error, config_errors, refuse_keys
from cosd_api.config.shape import (
    AnyMethod,
    AnyVerifier,
    LimitsConfig,
    MethodConfig,
    SectionConfig,
    ServerConfig,
    TrainedConfig,
    is_trained,
    method_hints,
)
from cosd_api.errors import SettingError
from cosd_api.methods.base import DEFAULT_METHOD, METHODS, Method, method_class, method_named
from cosd_api.methods.loader import is_address
from cosd_api.settings import AnswerOptions, Asking, FusionOptions, FusionSettings, OnAssistantError, OnDraftError
from cosd_api.verification import TRAINED, Verifier
from cosd_api.verification.trained_file import write_whole
from cosd_providers import Limits, connect
from cosd_providers.chat.templates import is_template
from cosd_providers.contract import Provider
from cosd_providers.messages import OnSpecialTokens

__all__ = ["PLAIN", "FusionConfig", "placed", "server_of"]

_MODELS = ("draft", "assistants", "models")
PLAIN = (
    "unit",
    "temperature",
    "tie",
    "draft_length",
    "max_ahead",
    "ask",
    "on_assistant_error",
    "on_draft_error",
    "on_special_tokens",
)
"""Settings of a fusion that are plain values."""
_SERVERS: WeakKeyDictionary[Provider, ServerConfig] = WeakKeyDictionary()


def _needs(*names: str) -> Any:
    """The schema of a file that names its models in these fields, and not in the other model fields."""
    given = {name: {"not": {"type": "null"}} if name in names else {"type": "null"} for name in _MODELS}
    return {"required": [*names], "properties": given}


class FusionConfig(BaseModel):
    """The settings of a fusion, as in a settings file; `Fusion.load` reads such a file, and `Fusion.save` writes it.

    The fields have the same names as the arguments of `Fusion`; None means the default. Each model is a URL or a
    mapping with the arguments of `connect`. The file contains no API keys, only the names of environment variables that
    contain them.

    Attributes:
        schema_version: version of the file format.
        draft: the model that writes, or the first of several equal models.
        assistants: the models that are asked.
        models: all models, instead of `draft` and `assistants`, for methods that treat all models alike.
        method: a name (or `FILE.py:CLASS`), or a mapping with `name` and the method's own settings.
        verifier: the verifier of CoSD: a kind, or a mapping with `kind` and either the verifier's numbers or the `file`
            of a trained verifier.
        limits: default limits for every answer.

    Raises:
        pydantic.ValidationError: a field is invalid.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        hide_input_in_errors=True,
        json_schema_extra={"oneOf": [_needs("draft", "assistants"), _needs("models")]},
    )

    schema_version: Annotated[int, Field(strict=True, ge=1, le=1)] | None = 1
    draft: ServerConfig | None = None
    assistants: Annotated[list[ServerConfig], Field(min_length=1)] | None = None
    models: Annotated[list[ServerConfig], Field(min_length=2)] | None = None
    method: Annotated[MethodConfig, AnyMethod] | None = None
    verifier: Annotated[Any, AnyVerifier] | None = None
    unit: Unit | None = None
    temperature: float | None = None
    tie: float | None = None
    draft_length: int | None = None
    max_ahead: int | None = None
    ask: Asking | None = None
    on_assistant_error: OnAssistantError | None = None
    on_draft_error: OnDraftError | None = None
    on_special_tokens: OnSpecialTokens | None = None
    limits: Annotated[SectionConfig, GetPydanticSchema(lambda _, make: make(LimitsConfig))] | None = None

    @model_validator(mode="after")
    def _has_models(self) -> Self:
        if self.models is None and (self.draft is None or self.assistants is None):
            raise ValueError("it needs draft and assistants, or models if the method treats all models as equal")
        if self.models is not None and (self.draft or self.assistants):
            raise ValueError("models are the draft and the assistants: give either models, or draft and assistants")
        return self

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
        value = _with_paths(cast("Any", document.value), lambda given: _absolute(path.parent, given))
        try:
            found = cls.model_validate(value, strict=True)  # strict, so "1" is not a number
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
        value = _with_paths(document, lambda given: _relative(placed(path).parent, given))
        write_whole(path, as_json(value) if path.suffix == ".json" else as_yaml(value, comment))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings as a document, because the classes for methods' settings are created at run time."""
        return type(self).model_validate, (self.document(),)

    def document(self) -> dict[str, Any]:
        """The settings as plain values: fields that differ from their defaults, and settings given for the method."""
        found: dict[str, Any] = {"schema_version": 1}
        for name, one in self.model_dump(mode="json", exclude_none=True, serialize_as_any=True).items():
            found[name] = _short(one) if isinstance(getattr(self, name), SectionConfig | list) else one
        if self.method is not None:
            own = self.method.model_dump(mode="json", exclude_none=True, exclude_unset=True)
            found["method"] = own if len(own) > 1 else self.method.name
        return {name: one for name, one in found.items() if one != {}}

    def options(self) -> FusionOptions:
        """The arguments of `Fusion`, without its models.

        Raises:
            OSError: the file of a trained verifier or gate cannot be read.
            SettingError: a trained verifier or gate is invalid.
        """
        found: dict[str, Any] = {"method": self._method(), "verifier": self._verifier()}
        found |= {name: getattr(self, name) for name in PLAIN}
        return cast("FusionOptions", {name: one for name, one in found.items() if one is not None})

    def answer_options(self) -> AnswerOptions:
        """The limits that the file sets for an answer."""
        return cast("AnswerOptions", self.limits.chosen() if self.limits else {})

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

    def _method(self) -> str | Method:
        own = self.method.chosen() if self.method else {}
        name = self.method.name if self.method else DEFAULT_METHOD
        return method_named(name, **own) if own or name != DEFAULT_METHOD else DEFAULT_METHOD

    def _verifier(self) -> Verifier | None:
        if isinstance(self.verifier, TrainedConfig):
            return cast("Verifier", TRAINED[self.verifier.kind].load(self.verifier.file))
        return cast("Verifier | None", self.verifier)

    def _check(self, path: Path, document: Document) -> None:
        """Check that the settings are consistent, and check the files that they name.

        Raises:
            SettingError: the settings are invalid, or a file is missing.
        """
        steps = (("method",), self._method), (("verifier",), self._verifier), ((), self._settings)
        for at, make in steps:
            try:
                make()
            except SettingError as error:
                field, *_ = str(error).split(" ")
                raise config_error(path, document, (field,) if not at and field in PLAIN else at, str(error)) from None
            except OSError as error:
                words = f"{error.filename} cannot be read: {error.strerror}"
                words += ". Paths are relative to the folder of this file"
                raise config_error(path, document, at, words) from None

    def _settings(self) -> FusionSettings:
        return FusionSettings.checked(**self.options())


def _short(given: Any) -> Any:
    """Reduce a server to its URL if it has no other settings, at any depth of lists."""
    if isinstance(given, list):
        return [_short(one) for one in cast("Sequence[Any]", given)]
    return given["url"] if given.keys() == {"url"} else given


def _with_paths(document: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return a document in which the paths of files are changed; other values are left as they are."""

    def within(part: Any, names: Sequence[str]) -> Any:
        if isinstance(part, list):
            return [within(one, names) for one in cast("Sequence[Any]", part)]
        if not isinstance(part, Mapping):
            return part
        fields = cast("Mapping[str, Any]", part)
        return {name: change(one) if name in names and isinstance(one, str) else one for name, one in fields.items()}

    named: dict[str, Sequence[str]] = {
        **dict.fromkeys(_MODELS, ("tokenizer", "chat_template", "report")),
        "verifier": ("file",),
    }
    method: object = document.get("method")
    if isinstance(method, Mapping):
        name: object = cast("Mapping[str, Any]", method).get("name")
        hints = method_hints(method_class(name)) if isinstance(name, str) and name in METHODS else {}
        named["method"] = tuple(one for one, hint in hints.items() if is_trained(hint))
        if isinstance(name, str) and is_address(name):
            named["method"] = ("name",)
    found = {name: within(one, named[name]) if name in named else one for name, one in document.items()}
    if isinstance(method, str) and is_address(method):
        found["method"] = change(method)
    return found


def _absolute(folder: Path, given: str) -> str:
    return given if given.startswith("tiktoken:") or is_template(given) else str(placed(folder / given))


def _relative(folder: Path, given: str) -> str:
    if is_template(given) or not Path(given).is_absolute():
        return given
    path = placed(Path(given))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else given


def placed(path: Path) -> Path:
    """Make a file's path absolute, resolving symbolic links in its folder but not a link at the file itself."""
    return path.parent.resolve() / path.name


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


def server_of(provider: Provider) -> ServerConfig | None:
    """Return the settings from which `FusionConfig.servers` created a provider; None for any other provider."""
    with suppress(TypeError):  # a custom provider may not be hashable
        return _SERVERS.get(provider)
    return None
