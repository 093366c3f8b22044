"""The fields that a chat model and a text model have in common: checked, saved, and made a fusion of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast
from urllib.parse import urlsplit
from uuid import uuid4

from langchain_core.language_models.base import BaseLanguageModel, LangSmithParams
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SkipValidation,
    TypeAdapter,
    field_validator,
    model_validator,
)

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.fusion import Fusion
from cosd_api.integrations.langchain.held import Held
from cosd_api.settings import (
    AnswerLimits,
    AnswerOptions,
    Asking,
    CustomVerifier,
    FusionOptions,
    KnownVerifier,
    OnAssistantError,
    OnBudget,
    Tuning,
    check_count,
    describe_verifier,
    refuse,
)
from cosd_api.verification import Verifier
from cosd_providers import connect
from cosd_providers.contract import Provider
from cosd_providers.messages import OnSpecialTokens

__all__ = ["Call", "Fields"]

_OF_AN_ANSWER = tuple(name for name in AnswerOptions.__annotations__ if name != "stop")
_OF_A_FUSION = tuple(FusionOptions.__annotations__)
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format")


@dataclass(frozen=True, slots=True)
class Call:
    """What one answer is asked with.

    Attributes:
        bounds: the arguments of `Fusion.stream`.
        retries: how often it is begun anew.
        model: the name that it goes by; None takes those of the servers' models.
    """

    bounds: Mapping[str, Any]
    retries: int
    model: str | None


class Fields(BaseLanguageModel[Any]):
    """The fields of `ChatCoSD` and `CoSDLLM`; they are described there."""

    model_config = ConfigDict(
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,  # which holds the key
        protected_namespaces=(),
    )

    draft: SkipValidation[str | Provider | None] = Field(default=None, frozen=True)
    assistant: SkipValidation[str | Provider | Sequence[str | Provider] | None] = Field(default=None, frozen=True)
    fusion: SkipValidation[Fusion | None] = Field(default=None, frozen=True, repr=False)
    api_key: SecretStr | None = Field(default=None, frozen=True)
    model: str | None = None

    max_tokens: int | None = None
    stop: list[str] | str | None = None
    timeout: float | None = None
    max_retries: int = 0
    max_requests: int | None = None
    max_billed_tokens: int | None = None
    on_budget: OnBudget | None = None
    temperature: float | None = None
    streaming: bool = False

    verifier: SkipValidation[Verifier | None] = Field(default=None, frozen=True)
    unit: Unit | None = Field(default=None, frozen=True)
    draft_length: int | None = Field(default=None, frozen=True)
    ask: Asking | None = Field(default=None, frozen=True)
    on_assistant_error: OnAssistantError | None = Field(default=None, frozen=True)
    on_special_tokens: OnSpecialTokens | None = Field(default=None, frozen=True)
    tuning: Tuning | None = Field(default=None, frozen=True)

    _held: Held = PrivateAttr(default_factory=Held)
    _mark: str = PrivateAttr(default_factory=lambda: uuid4().hex)

    # ------------------------------------------------------------------------------------------------- made and checked

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        """Refuses what nobody knows; takes from the environment where the servers are, unless that was said."""
        if not isinstance(given, dict):  # a model that is made already, as a field of another one
            return given
        fields = cast("dict[str, Any]", given)
        refuse({name: value for name, value in fields.items() if name not in cls.model_fields}, cls)
        if fields.get("fusion") is not None:
            return fields
        servers = {name: os.environ.get(f"COSD_{name.upper()}_URL", "").split() for name in ("draft", "assistant")}
        return {**{name: urls if urls[1:] else urls[0] for name, urls in servers.items() if urls}, **fields}

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, temperature: float | None) -> float | None:
        return _greedy(temperature)

    @field_validator("verifier", mode="before")
    @classmethod
    def _read_verifier(cls, verifier: Any) -> Any:
        """A verifier, or its JSON form, as a saved model has it."""
        return TypeAdapter[Any](KnownVerifier).validate_python(verifier) if isinstance(verifier, dict) else verifier

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        """Makes the fusion, which asks no server anything: what it cannot take is said now."""
        self._pattern()
        AnswerLimits.checked(**self._asked_with(None, {}).bounds)
        return self

    def _asked_with(self, stop: Sequence[str] | str | None, given: Mapping[str, Any]) -> Call:
        """What an answer is asked with: the fields, unless the call has its own.

        Raises:
            SettingError: a setting that a fusion cannot take, with the reason.
            TypeError: one that it does not know.
        """
        call = {name: value for name, value in given.items() if value is not None}
        call.pop("stream", None)  # LangChain has understood it
        _greedy(call.pop("temperature", None))
        retries = check_count("max_retries", call.pop("max_retries", self.max_retries), least=0)
        model = call.pop("model", self.model)
        for name in _TOOLS:
            if call.get(name):
                raise SettingError(f"{name} is not taken: a fusion writes text, and calls no tools. Leave it out.")
        refuse({name: value for name, value in call.items() if name not in _OF_AN_ANSWER}, Fusion.stream)
        bounds = {name: call.get(name, getattr(self, name)) for name in _OF_AN_ANSWER}
        bounds["stop"] = self.stop if stop is None else stop
        return Call({name: value for name, value in bounds.items() if value is not None}, retries, model)

    def _pattern(self) -> Fusion:
        return self._held.like(self._make)

    def _make(self) -> Fusion:
        settings = {name: value for name in _OF_A_FUSION if (value := getattr(self, name)) is not None}
        servers = {name: one for name in ("draft", "assistant", "api_key") if (one := getattr(self, name)) is not None}
        if self.fusion is not None:
            if extra := [*servers, *settings]:
                raise SettingError(f"{', '.join(extra)}: the fusion that is given has its own; leave one of them out")
            if not isinstance(self.fusion, Fusion):
                raise SettingError(f"fusion must be a Fusion, not {type(self.fusion).__name__}")
            return self.fusion
        for name in ("draft", "assistant"):
            if name not in servers:
                raise SettingError(f"there is no {name}: give its URL, or set COSD_{name.upper()}_URL")
        draft, *assistants = self._with_key([self.draft, *_several(self.assistant)])
        return Fusion(draft=draft, assistant=assistants, **settings)

    def _with_key(self, servers: Sequence[Any]) -> list[Any]:
        """The servers, those given as URLs with the key: only where there is no doubt that it is meant for them."""
        if self.api_key is None:
            return list(servers)
        hosts = sorted({_host(one) for one in servers if isinstance(one, str)})
        if not hosts:
            words = "draft and assistant are providers already"
            raise SettingError(f"api_key has nowhere to go: {words}; give it to each, connect(url, api_key=...)")
        if len(hosts) > 1:
            raise SettingError(
                f"api_key is one key, and would go to {' and '.join(hosts)}. Give each server its own: "
                "draft=connect(url, api_key=...), or set COSD_API_KEY_<HOST>"
            )
        key = self.api_key.get_secret_value()
        return [connect(one, api_key=key) if isinstance(one, str) else one for one in servers]

    def __copy__(self) -> Self:
        return self._anew(super().__copy__())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self._anew(super().__deepcopy__(memo))

    def _anew(self, copied: Self) -> Self:
        """A copy, which may be given other servers, opens its own fusion."""
        copied._held, copied._mark = Held(), uuid4().hex
        return copied

    # ---------------------------------------------------------------------------------------- what LangChain asks of it

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """It can be saved, where its servers are given as URLs."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Where it is found when it is loaded: its public place."""
        return ["cosd_api", "integrations", "langchain"]

    @property
    def lc_secrets(self) -> dict[str, str]:
        """What is not saved, and its name where it is looked up."""
        return {"api_key": "COSD_API_KEY"}

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """Verifier and tuning as JSON has them; a verifier of the user's own cannot be saved."""
        known = describe_verifier(self.verifier) if self.verifier is not None else None
        saved: dict[str, Any] = {} if self.tuning is None else {"tuning": asdict(self.tuning)}
        if known is not None and not isinstance(known, CustomVerifier):
            saved["verifier"] = known.model_dump(mode="json")
        return saved

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        """What tells this model from others, for traces and caches: everything that the text depends on."""
        endpoints, verifier = self._pattern().endpoints, describe_verifier(self._pattern().settings.verifier)
        names = (*_OF_AN_ANSWER, "stop", *_OF_A_FUSION)
        told = {name: value for name in names if (value := getattr(self, name)) is not None}
        own = {} if self._can_be_saved() else {"object": self._mark}  # as two of one name may differ
        return {
            "model_name": self._model_name(),
            "draft": self.draft if isinstance(self.draft, str) else endpoints.draft.name,
            "assistant": [
                url if isinstance(url, str) else one.name
                for url, one in zip(_several(self.assistant) or endpoints.assistants, endpoints.assistants, strict=True)
            ],
            **told,
            **({} if self.tuning is None else {"tuning": asdict(self.tuning)}),
            "verifier": verifier.model_dump(mode="json"),
            **own,
        }

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "cosd"
        params.setdefault("ls_model_name", self._model_name())
        if stop is None and self.stop:
            params["ls_stop"] = [self.stop] if isinstance(self.stop, str) else list(self.stop)
        return params

    def _can_be_saved(self) -> bool:
        urls = all(isinstance(one, str) for one in [self.draft, *_several(self.assistant)])
        return urls and (self.verifier is None or "verifier" in self.lc_attributes)

    def _model_name(self) -> str:
        """The name of the model as far as it is known before an answer."""
        endpoints = self._pattern().endpoints
        return self.model or "+".join(one.name for one in [endpoints.draft, *endpoints.assistants])


def _several(assistant: Any) -> list[Any]:
    """One assistant, or several, as a list; None are none."""
    if assistant is None:
        return []
    several = isinstance(assistant, Sequence) and not isinstance(assistant, str)
    return list(cast("Sequence[Any]", assistant)) if several else [assistant]


def _host(url: str) -> str:
    """Where a key would go."""
    connect(url)  # says what is wrong with a URL
    return urlsplit(url.strip()).hostname or ""


def _greedy(temperature: float | None) -> float | None:
    """The temperature as given: none, or 0, which is what a greedy draft has."""
    if temperature:
        refuse({"temperature": temperature}, Fusion.stream)
    return temperature
