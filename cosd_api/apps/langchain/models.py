"""The two LangChain models: `ChatCoSD` for conversations, `CoSDLLM` for raw text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Literal, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.language_models.llms import BaseLLM
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult, Generation, GenerationChunk, LLMResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_pydantic_v1_subclass
from pydantic import BaseModel

from cosd_api import FusionResult, SettingError
from cosd_api.apps.langchain.fusion_model import LangChainFusion, conversation, digest
from cosd_api.checks import check_choice
from cosd_api.common.sync import iterate_sync
from cosd_api.structured import ResponseFormat
from cosd_api.tools import CallBegun, CallReader, Part
from cosd_api.types import FusedToken
from cosd_providers import Message
from cosd_providers.concurrency import concurrently

__all__ = ["ChatCoSD", "CoSDLLM"]


class ChatCoSD(LangChainFusion, BaseChatModel):  # type: ignore[misc] # only the first parameters' names differ
    """A LangChain chat model in which two or more models write one answer.

        model = ChatCoSD(draft="http://gpu1:8080", assistant="http://gpu2:8080")
        model.invoke("Name the capital of Peru.").content

    Each model is sent the conversation in its own chat template. If the last message is the assistant's, it is a
    partial answer, which is continued. Messages consist of text, tool calls and their results; images are refused.

    Each event loop has its own connections, which are opened for its first answer and closed when the loop ends (for
    example, by `asyncio.run`). Synchronous methods share the event loop of `fuse_sync`, which runs in a separate
    thread.

    Attributes:
        draft: URL or provider (`cosd_api.connect`) of the draft model; by default, the URL in `COSD_DRAFT_URL`.
        assistant: URL or provider, or a list of them for several assistants; by default, the URL in
            `COSD_ASSISTANT_URL`, or several URLs separated by spaces.
        fusion: a `Fusion`, instead of servers and settings. It need not be open: each event loop opens a copy with the
            same providers.
        api_key: key for servers that are given as URLs, which must be on one host. For several hosts, give each server
            its own key, with `connect(url, api_key=...)` or `COSD_API_KEY_<HOST>`.
        model: name in `response_metadata["model_name"]` and in traces; by default, the names of the servers' models. To
            choose a model on a server, use `connect(url, model=...)`.
        max_tokens: maximum number of tokens in the answer, including its end; 256 by default.
        stop: stop strings; the answer ends before the first one that it contains.
        timeout: maximum number of seconds for the whole answer.
        max_retries: maximum number of times to restart an answer after a retryable error, as long as no text has been
            delivered. Individual requests are always retried.
        max_requests, max_billed_tokens, on_budget: limits on each answer; see `Fusion.stream`.
        temperature: a setting of `Fusion`; a call with a different temperature is refused.
        seed: seed of each answer, for methods that draw tokens at random. With a seed, equal prompts produce equal
            answers.
        own: messages for single models, by name; see `Fusion.stream`. Traces and caches contain only their digest.
        streaming: whether `invoke` streams internally; callbacks receive each token in either case.
        call_format: format in which the models call tools (`bind_tools`); by default, that of their chat templates.
        method, verifier, unit, tie, draft_length, ask, max_ahead, on_assistant_error, on_draft_error,
            on_special_tokens: settings of
            `Fusion`.

    All limits, `stop`, `max_retries` and `model` can also be given to a single call or with `bind`.

    `response_metadata["cosd"]` is the `FusionResult` without its text and tokens. It contains the acceptance rate,
    replacements, warnings, and usage by endpoint. `usage_metadata` is the sum over all endpoints.

    Raises:
        pydantic.ValidationError: a setting is invalid (also a ValueError).
        TypeError: an argument is unknown.
        cosd_providers.ProviderError: raised by every method if an endpoint fails. The error is also a
            `langchain_core.exceptions.ModelError`.
        SettingError: raised by every method if a message or setting is not supported.
    """

    @property
    def _llm_type(self) -> str:
        return "cosd-chat"

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """Let the models call tools. Calls always have the name of a tool, and arguments of its schema.

        Args:
            tools: functions, LangChain tools, pydantic models, `TypedDict`s, or tools in the format of OpenAI's API.
            tool_choice: `"auto"`, `"none"`, `"any"` or `"required"` (at least one call), or the name of the only tool
                that may be called. True means any tool.
            parallel_tool_calls: whether an answer may contain several calls; by default it may.
            **kwargs: further arguments of each call.

        Answers raise a SettingError if a tool or the choice is invalid, or the schema of a tool cannot be enforced.
        """
        kwargs.pop("strict", None)  # every schema is kept strictly
        given = [convert_to_openai_tool(one) for one in tools]
        choice = _tool_choice(tool_choice)
        return self.bind(tools=given, tool_choice=choice, parallel_tool_calls=parallel_tool_calls, **kwargs)

    def with_structured_output(
        self,
        schema: Any = None,
        *,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        include_raw: bool = False,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """Restrict answers to a format, and return their values; see `Fusion.stream` for `response_format`.

        Args:
            schema: a pydantic model (of version 1, too), a `TypedDict`, a JSON schema, or another `response_format`.
            method: `"json_mode"` accepts any JSON object, and uses a schema only to read it. The others do the same.
            include_raw: return a dictionary with the message (`raw`), its value (`parsed`) and an error in it
                (`parsing_error`).
            **kwargs: further arguments of each call.

        Raises:
            SettingError: the format or the method is invalid.
        """
        check_choice("method", method, Literal["json_schema", "function_calling", "json_mode"])
        kwargs.pop("strict", None)  # every format is kept strictly
        known = ResponseFormat.of({"type": "json_object"} if schema is None else _format(schema))
        if known is None:
            raise SettingError("schema is any text: leave with_structured_output out")
        chosen = ResponseFormat.of({"type": "json_object"}) if method == "json_mode" else known

        given: Any = schema
        older: Any = given if isinstance(given, type) and is_pydantic_v1_subclass(given) else None

        def parse(message: Any) -> Any:
            value = known.parse(str(message.content))
            return older.parse_obj(value) if older else value

        if schema is not None:  # for traces
            kwargs["ls_structured_output_format"] = {"kwargs": {"method": method}, "schema": schema}
        bound = self.bind(response_format=chosen, **kwargs)
        if not include_raw:
            return bound | RunnableLambda(parse)

        def both(message: Any) -> dict[str, Any]:
            try:
                return {"raw": message, "parsed": parse(message), "parsing_error": None}
            except ValueError as error:
                return {"raw": message, "parsed": None, "parsing_error": error}

        return bound | RunnableLambda(both)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """Return an answer's key in a cache. The key also distinguishes between models that cannot be saved."""
        named = _without_own(kwargs)
        return super()._get_llm_string(stop=stop, **named) + repr(sorted(self._identifying_params.items()))

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the settings of an answer, for traces."""
        return super()._get_invocation_params(stop=stop, **_without_own(kwargs))

    def _read(self, given: Sequence[BaseMessage]) -> Sequence[Message]:
        return conversation(given)

    def _chunks(
        self, item: FusedToken | FusionResult, model: str | None, calls: CallReader | None
    ) -> list[ChatGenerationChunk]:
        if isinstance(item, FusedToken):
            parts = [item.text] if calls is None else calls.read(item.text)
            return [ChatGenerationChunk(message=_message(part)) for part in parts]
        details, rest = _details(item, model), ""
        if calls is not None:
            rest = calls.rest()
            if calls.complete and item.finish_reason == "stop":
                details["finish_reason"] = "tool_calls"
        more: dict[str, Any] = {"response_metadata": details, "usage_metadata": _usage(item)}
        return [ChatGenerationChunk(message=AIMessageChunk(content=rest, chunk_position="last", **more))]

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async with aclosing(self._astream(messages, stop, run_manager, **kwargs)) as chunks:
            return await agenerate_from_stream(chunks)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))


class CoSDLLM(LangChainFusion, BaseLLM):  # type: ignore[misc] # only the first parameters' names differ
    """A LangChain text model in which two or more models continue a raw text.

        model = CoSDLLM(draft="http://gpu1:8080", assistant="http://gpu2:8080")
        model.invoke("Once upon a time")

    Fields, errors and event loops are as in `ChatCoSD`. The models are sent the text unchanged. `generation_info`
    contains the details of an answer: `finish_reason`, `model_name`, `usage_metadata`, and `cosd`, which is the
    `FusionResult` without its text and tokens. Several prompts are answered at the same time, but callbacks receive
    only the tokens of the first answer. LangChain's caches look up an answer by prompt, model and `stop`. Therefore, if
    you use a cache, set all other limits on the model, not in a call.
    """

    @property
    def _llm_type(self) -> str:
        return "cosd"

    def _read(self, given: str) -> str:
        return given

    def _chunks(
        self, item: FusedToken | FusionResult, model: str | None, calls: CallReader | None
    ) -> list[GenerationChunk]:
        assert calls is None
        if isinstance(item, FusedToken):
            return [GenerationChunk(text=item.text)]
        return [GenerationChunk(text="", generation_info={**_details(item, model), "usage_metadata": _usage(item)})]

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        async def answer(at: int) -> list[GenerationChunk]:
            told = run_manager if at == 0 else None  # LangChain passes only the manager of the first prompt
            async with aclosing(self._astream(prompts[at], stop, told, **kwargs)) as chunks:
                return [chunk async for chunk in chunks]

        return _together(await concurrently([partial(answer, at) for at in range(len(prompts))]))

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        async def work(emit: Callable[[GenerationChunk | LLMResult], None]) -> None:
            emitting: Any = _Emitting(emit)
            emit(await self._agenerate(prompts, stop, emitting, **kwargs))

        result = LLMResult(generations=[])
        with closing(iterate_sync(work, type(self).__name__)) as items:
            for item in items:
                if isinstance(item, LLMResult):
                    result = item
                elif run_manager is not None:
                    run_manager.on_llm_new_token(item.text, chunk=item)
        return result


class _Emitting:
    """A callback manager that passes each chunk to a function."""

    def __init__(self, emit: Callable[[GenerationChunk], None]) -> None:
        self._emit = emit

    async def on_llm_new_token(self, token: str, *, chunk: GenerationChunk) -> None:  # noqa: ARG002 - LangChain's
        self._emit(chunk)


def _tool_choice(given: Any) -> Any:
    """Return LangChain's choice of a tool in the format of OpenAI's API."""
    if isinstance(given, bool):
        return "required" if given else None
    if not isinstance(given, str) or given in ("auto", "none", "required"):
        return given
    return "required" if given == "any" else {"type": "function", "function": {"name": given}}


def _message(part: Part) -> AIMessageChunk:
    """Return the chunk for a part of an answer that may call tools."""
    if isinstance(part, str):
        return AIMessageChunk(content=part)
    if isinstance(part, CallBegun):
        piece = tool_call_chunk(name=part.name, args="", id=part.id, index=part.index)
    else:
        piece = tool_call_chunk(args=part.text, index=part.index)
    return AIMessageChunk(content="", tool_call_chunks=[piece])


def _format(schema: Any) -> Any:
    """Return a schema as a `response_format`: LangChain converts what pydantic and JSON Schema do not know."""
    given = cast("object", schema)
    if isinstance(given, type) and not issubclass(given, BaseModel):
        return convert_to_json_schema(cast("type[Any]", given))
    return given


def _without_own(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call; a digest replaces the messages for single models."""
    return {name: digest(one) if name == "own" and one is not None else one for name, one in call.items()}


def _together(answers: Sequence[Sequence[GenerationChunk]]) -> LLMResult:
    """Join the chunks for each prompt into one generation, with the details from the last chunk."""
    whole = [
        Generation(text="".join(chunk.text for chunk in chunks), generation_info=chunks[-1].generation_info)
        for chunks in answers
    ]
    used = [(one.generation_info or {})["usage_metadata"] for one in whole]
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "total_tokens": "total_tokens"}
    sums = {name: sum(usage[theirs] for usage in used) for name, theirs in names.items()}
    output = {"token_usage": sums, "model_name": (whole[0].generation_info or {})["model_name"]} if whole else {}
    return LLMResult(generations=[[one] for one in whole], llm_output=output)


def _usage(result: FusionResult) -> UsageMetadata:
    """Return the number of tokens that all endpoints together billed, including discarded drafts."""
    used = result.usage.values()
    read, written = sum(one.prompt_tokens for one in used), sum(one.completion_tokens for one in used)
    cached = InputTokenDetails(cache_read=sum(one.cached_tokens for one in used))
    return UsageMetadata(
        input_tokens=read, output_tokens=written, total_tokens=read + written, input_token_details=cached
    )


def _details(result: FusionResult, model: str | None) -> dict[str, Any]:
    """Return the metadata of an answer; `cosd` is the result without its text and tokens."""
    return {
        "model_name": model or "+".join(one.model for one in [result.draft, *result.assistants]),
        "model_provider": "cosd",
        "finish_reason": result.finish_reason,
        "cosd": result.model_dump(mode="json", exclude={"text", "tokens"}),
    }
