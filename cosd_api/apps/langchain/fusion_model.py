"""Common base of both LangChain models: fields, settings, and answers from a fusion in the running event loop."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import cached_property
from typing import Any, Self, cast
from urllib.parse import urlsplit
from uuid import uuid4

from langchain_core import exceptions as langchain
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.base import BaseLanguageModel, LangSmithParams
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
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

import cosd_providers as ours
from cosd_api import Fusion, FusionResult, SettingError
from cosd_api.apps.langchain.fusion_per_loop import LoopFusions
from cosd_api.checks import OwnMessages, check_own
from cosd_api.common.sync import iterate_sync, synchronous
from cosd_api.extend import Method, Unit, Verifier, check_count
from cosd_api.methods import method_named
from cosd_api.settings import (
    AnswerLimits,
    AnswerOptions,
    Asking,
    FusionOptions,
    OnAssistantError,
    OnBudget,
    OnDraftError,
    describe_verifier,
    refuse_settings,
)
from cosd_api.structured import ResponseFormat
from cosd_api.tools import CallReader, ToolRequest, as_model_reads, format_named
from cosd_api.types import CustomVerifier, FusedToken
from cosd_api.verification import KnownVerifier
from cosd_providers import Message, Provider, ProviderError, UnsupportedError, connect
from cosd_providers.messages import ChatProvider, OnSpecialTokens, checked_messages

__all__ = ["LangChainFusion", "conversation", "digest", "langchain_error"]

_OF_A_CALL = ("stop", "alternatives", "response_format")
_OF_AN_ANSWER = tuple(name for name in AnswerOptions.__annotations__ if name not in _OF_A_CALL)
_OF_A_FUSION = tuple(FusionOptions.__annotations__)
_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


class LangChainFusion(BaseLanguageModel[Any]):
    """A fusion as a LangChain model. The fields are documented at `ChatCoSD`."""

    model_config = ConfigDict(
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,  # because the input may contain the API key
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
    seed: int | None = None
    own: SkipValidation[OwnMessages | None] = Field(default=None, repr=False)
    temperature: float | None = Field(default=None, frozen=True)
    streaming: bool = False
    call_format: str | None = None

    verifier: SkipValidation[Verifier | None] = Field(default=None, frozen=True)
    unit: Unit | None = Field(default=None, frozen=True)
    tie: float | None = Field(default=None, frozen=True)
    draft_length: int | None = Field(default=None, frozen=True)
    ask: Asking | None = Field(default=None, frozen=True)
    on_assistant_error: OnAssistantError | None = Field(default=None, frozen=True)
    on_draft_error: OnDraftError | None = Field(default=None, frozen=True)
    on_special_tokens: OnSpecialTokens | None = Field(default=None, frozen=True)
    max_ahead: int | None = Field(default=None, frozen=True)
    method: SkipValidation[str | Method | None] = Field(default=None, frozen=True)

    _fusions: LoopFusions = PrivateAttr(default_factory=LoopFusions)
    _mark: str = PrivateAttr(default_factory=lambda: uuid4().hex)

    # Settings.

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        """Refuse unknown names. If servers are not given, read them from the environment."""
        if not isinstance(given, dict):  # an existing model, which is used as a field of another object
            return given
        fields = cast("dict[str, Any]", given)
        refuse_settings({name: value for name, value in fields.items() if name not in cls.model_fields}, cls)
        if fields.get("fusion") is not None:
            return fields
        servers = {name: os.environ.get(f"COSD_{name.upper()}_URL", "").split() for name in ("draft", "assistant")}
        return {**{name: urls if urls[1:] else urls[0] for name, urls in servers.items() if urls}, **fields}

    @field_validator("verifier", mode="before")
    @classmethod
    def _read_verifier(cls, verifier: Any) -> Any:
        """Convert a verifier from its JSON form in a saved model."""
        if not isinstance(verifier, dict):
            return verifier
        return TypeAdapter[Any](KnownVerifier).validate_python(verifier)

    @field_validator("method", mode="before")
    @classmethod
    def _read_method(cls, method: Any) -> Any:
        """Convert a method from its JSON form in a saved model; leave a method object or a bare name unchanged."""
        return method_named(**cast("dict[str, Any]", method)) if isinstance(method, dict) else method

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        """Create the fusion, so that invalid settings are found now. This sends no request."""
        AnswerLimits.checked(**self._asked_with(None, {})[0]).seeded(self._pattern().settings.method)
        if self.call_format is not None:
            format_named(self.call_format)
        return self

    def _asked_with(
        self, stop: Sequence[str] | str | None, given: Mapping[str, Any]
    ) -> tuple[dict[str, Any], int, str | None]:
        """Return the arguments for `Fusion.stream`, the number of retries, and the model's name in metadata.

        Settings that the call does not contain come from the model's fields.

        Raises:
            SettingError: a setting is invalid.
            TypeError: a setting is unknown.
        """
        call = {name: value for name, value in given.items() if value is not None}
        call.pop("stream", None)  # LangChain has already handled this argument
        if call.get("temperature") == self._pattern().settings.temperature:
            del call["temperature"]
        retries = check_count("max_retries", call.pop("max_retries", self.max_retries), least=0)
        model = call.pop("model", self.model)
        for name in ("functions", "function_call"):
            if call.get(name):
                raise SettingError(f"{name} is obsolete: use bind_tools")
        response_format = call.pop("response_format", None)
        refuse_settings({name: value for name, value in call.items() if name not in _OF_AN_ANSWER}, Fusion.stream)
        limits = {name: call.get(name, getattr(self, name)) for name in _OF_AN_ANSWER}
        limits |= {"stop": self.stop if stop is None else stop, "response_format": response_format}
        return {name: value for name, value in limits.items() if value is not None}, retries, model

    def _pattern(self) -> Fusion:
        return self._fusions.like(self._make)

    def _make(self) -> Fusion:
        settings = {name: value for name in _OF_A_FUSION if (value := getattr(self, name)) is not None}
        servers = {name: one for name in ("draft", "assistant", "api_key") if (one := getattr(self, name)) is not None}
        if self.fusion is not None:
            if not isinstance(self.fusion, Fusion):
                raise SettingError(f"fusion must be a Fusion, not {type(self.fusion).__name__}")
            if settings.get("temperature") == self.fusion.settings.temperature:
                del settings["temperature"]
            if extra := [*servers, *settings]:
                raise SettingError(f"{', '.join(extra)}: the given fusion has its own; leave one of them out")
            return self.fusion
        for name in ("draft", "assistant"):
            if name not in servers:
                raise SettingError(f"there is no {name}: give its URL, or set COSD_{name.upper()}_URL")
        draft, *assistants = self._with_key([self.draft, *_several(self.assistant)])
        return Fusion(draft=draft, assistant=assistants, **settings)

    def _with_key(self, servers: Sequence[Any]) -> list[Any]:
        """Return the servers, with the API key added to those given as URLs, which must therefore be on one host."""
        if self.api_key is None:
            return list(servers)
        hosts = sorted({_host(one) for one in servers if isinstance(one, str)})
        if not hosts:
            words = "draft and assistant are providers already"
            raise SettingError(f"api_key has no use: {words}; give it to each, connect(url, api_key=...)")
        if len(hosts) > 1:
            raise SettingError(
                f"api_key is one key, and would go to {' and '.join(hosts)}. Give each server its own: "
                "draft=connect(url, api_key=...), or set COSD_API_KEY_<HOST>"
            )
        key = self.api_key.get_secret_value()
        return [connect(one, api_key=key) if isinstance(one, str) else one for one in servers]

    def __copy__(self) -> Self:
        return self._fresh(super().__copy__())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self._fresh(super().__deepcopy__(memo))

    def _fresh(self, copied: Self) -> Self:
        """Remove the fusions from a copy of the model, because the copy may be given different servers."""
        copied._fusions, copied._mark = LoopFusions(), uuid4().hex
        return copied

    # LangChain's protocol.

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Return True: a model whose servers are URLs can be saved."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Return the public module from which LangChain loads a saved model."""
        return ["cosd_api", "apps", "langchain"]

    @property
    def lc_secrets(self) -> dict[str, str]:
        """The secret fields, which are not saved, with the environment variables that replace them."""
        return {"api_key": "COSD_API_KEY"}

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """The verifier and method as JSON. Custom verifiers, and verifiers in a `CoSD(...)`, are left out."""
        known = describe_verifier(self.verifier) if self.verifier is not None else None
        saved: dict[str, Any] = {}
        if known is not None and not isinstance(known, CustomVerifier):
            saved["verifier"] = known.model_dump(mode="json")
        if isinstance(self.method, Method) and not self.method.hoisted:
            saved["method"] = {"name": self.method.name, **self.method.options()}
        return saved

    @cached_property
    def _serialized(self) -> dict[str, Any]:
        """The saved form for traces and caches, in which a digest replaces the messages for single models."""
        saved: dict[str, Any] = dumpd(self)
        if self.own is not None:
            saved["kwargs"]["own"] = digest(self.own)
        return saved

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        """Everything on which the text of an answer depends, for traces and caches."""
        endpoints, verifier = self._pattern().endpoints, describe_verifier(self._pattern().settings.verifier)
        names = (*_OF_AN_ANSWER, "stop", "call_format", *_OF_A_FUSION)
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.own is not None:
            given["own"] = digest(check_own(self.own))
        own = {} if self._can_be_saved() else {"object": self._mark}  # two custom objects may have the same name
        return {
            "model_name": self._model_name(),
            "draft": self.draft if isinstance(self.draft, str) else endpoints.draft.name,
            "assistant": [
                url if isinstance(url, str) else one.name
                for url, one in zip(_several(self.assistant) or endpoints.assistants, endpoints.assistants, strict=True)
            ],
            **given,
            "verifier": verifier.model_dump(mode="json"),
            **({} if self.method is None else {"method": repr(self.method)}),
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
        known = self.verifier is None or "verifier" in self.lc_attributes
        return urls and known and not (isinstance(self.method, Method) and self.method.hoisted)

    def _model_name(self) -> str:
        """Return the model's name or, if it has none, the names of its endpoints, which are known without requests."""
        endpoints = self._pattern().endpoints
        return self.model or "+".join(one.name for one in [endpoints.draft, *endpoints.assistants])

    # Answers.

    async def _opened(self) -> Fusion:
        return await self._fusions.opened(self._make)

    def _read(self, given: Any) -> str | Sequence[Message]:
        """Convert the input of a call to a prompt of a fusion."""
        raise NotImplementedError

    def _chunks(self, item: FusedToken | FusionResult, model: str | None, calls: CallReader | None) -> list[Any]:
        """Convert a token to chunks with its text or calls, or the result to the last chunk, which has metadata."""
        raise NotImplementedError

    async def _with_tools(
        self, prompt: str | Sequence[Message], limits: dict[str, Any], tools: Mapping[str, Any]
    ) -> tuple[str | Sequence[Message], CallReader | None]:
        """Add tools to a conversation, and the format of the answer to `limits`; return the reader of the calls."""
        if isinstance(prompt, str):
            if any(tools.values()):
                raise SettingError("tools are part of a conversation: use ChatCoSD instead of CoSDLLM")
            return prompt, None
        content = ResponseFormat.of(limits.get("response_format"))
        given = [tools.get(name) for name in _TOOLS]
        request = ToolRequest.checked(given[0], given[1], prompt, parallel=given[2], content=content)
        if request is None:
            return prompt, None
        models = (await self._opened()).endpoints
        several = models.draft, *models.assistants
        prompt, limits["response_format"], calls = await request.prepared(prompt, several, self.call_format)
        return prompt, calls

    async def _astream(
        self,
        given: Any,
        stop: Sequence[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[Any]:
        """Yield an answer in chunks; pass each chunk to the callbacks first."""
        tools = {name: kwargs.pop(name) for name in _TOOLS if name in kwargs}
        limits, retries, name = self._asked_with(stop, kwargs)
        prompt, calls = await self._with_tools(self._read(given), limits, tools)
        async with aclosing(self._fused(prompt, limits, retries)) as items:
            async for item in items:
                for chunk in self._chunks(item, name, calls):
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

    async def _fused(
        self, prompt: str | Sequence[Message], limits: Mapping[str, Any], retries: int
    ) -> AsyncGenerator[FusedToken | FusionResult]:
        """Yield the tokens of an answer, then its result.

        Raises:
            ProviderError: an endpoint failed, and `max_retries` did not help. The error is also a LangChain error.
        """
        tries = 0
        while True:
            begun = False
            try:
                async with (await self._opened()).stream(prompt, **limits) as stream:
                    async for token in stream:
                        if token.text:  # skip the end of sequence, which has no text
                            begun = True
                            yield token
                    yield stream.result
                    return
            except ProviderError as error:
                tries += 1
                if begun or tries > retries or not error.retryable:
                    raise langchain_error(error) from error

    def get_token_ids(self, text: str) -> list[int]:
        """Encode a text with the draft's tokenizer, without special tokens.

        Raises:
            UnsupportedError: the draft's server has no tokenizer; `connect(url, tokenizer=...)` provides one.
        """
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return synchronous(self._token_ids, "get_token_ids")(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Count the tokens of a conversation, rendered by the draft's chat template.

        The number is approximate, because some servers encode special tokens as if they were plain text.

        Raises:
            SettingError: a message or a tool is not supported.
            UnsupportedError: the draft has no chat template, or its server has no tokenizer.
        """
        count = synchronous(self._count, "get_num_tokens_from_messages")
        return count(conversation(messages), [convert_to_openai_tool(one) for one in tools or ()])

    async def _token_ids(self, text: str) -> list[int]:
        draft = (await self._opened()).endpoints.draft
        try:
            return [piece.id for piece in await draft.tokenize(text)]
        except ProviderError as error:
            raise langchain_error(error) from error

    async def _count(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> int:
        draft = (await self._opened()).endpoints.draft
        try:
            if not isinstance(draft, ChatProvider):
                raise UnsupportedError("the draft's provider takes no messages", endpoint=draft.name)
            whole, _ = await self._with_tools(messages, {}, {"tools": tools})
            turn = await draft.render_prompt(await as_model_reads(draft, cast("Sequence[Message]", whole)))
            return len(await self._token_ids(turn.prompt))
        except ProviderError as error:
            raise langchain_error(error) from error

    def _stream(
        self,
        given: Any,
        stop: Sequence[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Generator[Any]:
        """Yield an answer in chunks; pass each chunk to the callbacks first."""

        async def work(emit: Callable[[Any], None]) -> None:
            async with aclosing(self._astream(given, stop, None, **kwargs)) as chunks:
                async for chunk in chunks:
                    emit(chunk)

        with closing(iterate_sync(work, type(self).__name__)) as chunks:
            for chunk in chunks:
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk


def _several(assistant: Any) -> list[Any]:
    """Return the assistants as a list, even if there is only one; empty for None."""
    if assistant is None:
        return []
    several = isinstance(assistant, Sequence) and not isinstance(assistant, str)
    return list(cast("Sequence[Any]", assistant)) if several else [assistant]


def _host(url: str) -> str:
    """Return the host of a URL."""
    connect(url)  # raises an error for an invalid URL
    return urlsplit(url.strip()).hostname or ""


def digest(own: object) -> str:
    """Return the digest that replaces the messages for single models in traces and caches."""
    return hashlib.sha256(repr(own).encode()).hexdigest()


# Messages.

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (HumanMessage, "user"),
    (SystemMessage, "system"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
)
_CALL_PARTS = ("tool_use", "tool_call", "function_call", "input_json_delta")
"""Types of parts in which some models repeat the calls of a message as its content."""


def conversation(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """Convert LangChain's messages to the messages that a fusion accepts, without the speakers' names.

    Raises:
        SettingError: a message contains anything but text and tool calls, or is out of place.
    """
    plain = [_plain(message, at) for at, message in enumerate(messages)]
    try:
        return checked_messages(plain)
    except ValueError as error:
        raise SettingError(str(error)) from None


def _plain(message: BaseMessage, at: int) -> dict[str, Any]:
    """Convert a message to the format of OpenAI's API, for `checked_messages`."""
    role = next((role for kind, role in _ROLES if isinstance(message, kind)), None)
    if isinstance(message, ChatMessage):
        role = message.role
    if role is None:
        raise SettingError(f"messages[{at}] is a {type(message).__name__}: a fusion takes no such message")
    plain: dict[str, Any] = {"role": role, "content": message.content}
    if isinstance(message, ToolMessage):
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AIMessage) and (calls := _calls(message)):
        parts = message.content if isinstance(message.content, list) else [message.content]
        text = [one for one in parts if not (isinstance(one, dict) and one.get("type") in _CALL_PARTS)]
        plain |= {"content": text, "tool_calls": calls}
    return plain


def _calls(message: AIMessage) -> list[dict[str, Any]]:
    """Return the calls of a message in the format of OpenAI's API; invalid ones, which were cut, as they are."""
    made = [(one["id"], one["name"], json.dumps(one["args"], ensure_ascii=False)) for one in message.tool_calls]
    made += [(one["id"], one["name"] or "", one["args"] or "") for one in message.invalid_tool_calls]
    return [{"id": at, "type": "function", "function": {"name": name, "arguments": args}} for at, name, args in made]


# Errors that can be caught either as errors of this library or as errors of LangChain.

_TREE: tuple[tuple[type[ours.ProviderError], type[langchain.ModelError]], ...] = (
    (ours.ContextLengthError, langchain.ContextOverflowError),
    (ours.AuthenticationError, langchain.ModelAuthenticationError),
    (ours.RateLimitError, langchain.ModelRateLimitError),
    (ours.ServerError, langchain.ModelAPIError),
    (ours.InvalidRequestError, langchain.ModelInvalidRequestError),
    (ours.ModelChoiceError, langchain.ModelNotFoundError),
    (ours.ConnectError, langchain.ModelConnectionError),
    (ours.ProviderTimeoutError, langchain.ModelTimeoutError),
    (ours.BudgetTimeoutError, langchain.ModelTimeoutError),
)
"""This library's errors and the corresponding errors of LangChain. Any other error corresponds to `ModelError`."""

_FORBIDDEN = 403

_made: dict[tuple[object, object], type[ours.ProviderError]] = {}


def langchain_error(error: ours.ProviderError) -> ours.ProviderError:
    """Convert an error to an error that belongs to both libraries, with the endpoint, hint and `partial` of `error`.

    The caller should raise the new error from `error`.
    """
    if isinstance(error, langchain.ModelError):
        return error
    theirs = next((theirs for kind, theirs in _TREE if isinstance(error, kind)), langchain.ModelError)
    if theirs is langchain.ModelAuthenticationError and error.status == _FORBIDDEN:
        theirs = langchain.ModelPermissionDeniedError
    both = _made.setdefault((type(error), theirs), _both(type(error), theirs))
    made = both.__new__(both)
    made.args = error.args
    vars(made).update(vars(error), is_retryable=error.retryable, _ours=error)
    return made


def _both(kind: type[ours.ProviderError], theirs: type[langchain.ModelError]) -> type[ours.ProviderError]:
    """Create a class that inherits from both and has the name of `kind`."""

    def reduced(self: Any) -> tuple[object, ...]:
        return (langchain_error, (self._ours,))  # because pickle cannot find this class by its name

    return type(kind.__name__, (kind, theirs), {"__reduce__": reduced, "__module__": __name__, "__doc__": kind.__doc__})
