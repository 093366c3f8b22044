"""LangChain's two models: `ChatCoSD` for conversations, `CoSDLLM` for raw text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.language_models.llms import LLM
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult, Generation, GenerationChunk, LLMResult

from cosd_api import FusionResult
from cosd_api.extend import concurrently, iterate_sync
from cosd_api.integrations.langchain.base import LangChainFusion, conversation, digest
from cosd_api.types import FusedToken

__all__ = ["ChatCoSD", "CoSDLLM"]


class ChatCoSD(LangChainFusion, BaseChatModel):
    """Two or more chat models that write one answer, as a LangChain chat model.

        model = ChatCoSD(draft="http://gpu1:8080", assistant="http://gpu2:8080")
        model.invoke("Name the capital of Peru.").content

    Each model reads the conversation through its own chat template. A final message of the assistant is a partial
    answer, which is continued. Messages are text; tools, images and structured output are refused.

    Each event loop has its own connections, opened at its first answer and closed with the loop (`asyncio.run` does
    so). Synchronous methods share the loop of `fuse_sync`, in its own thread.

    Attributes:
        draft: URL or provider (`cosd_api.connect`) of the draft model. By default `COSD_DRAFT_URL`.
        assistant: the same for one assistant or several. By default `COSD_ASSISTANT_URL`, with spaces between URLs.
        fusion: a `Fusion` instead of the servers and their settings. It need not be open: each event loop opens a copy
            over the same providers.
        api_key: key for servers given as URLs; refused if these are on different hosts. Then give each server its own
            key, by `connect(url, api_key=...)` or `COSD_API_KEY_<HOST>`.
        model: a name for `response_metadata["model_name"]` and traces; by default the names of the servers' models. To
            choose a model on a server, use `connect(url, model=...)`.
        max_tokens: limit for the answer, its end included; 256 by default.
        stop: strings; the answer ends before the first one.
        timeout: seconds for the whole answer.
        max_retries: attempts to restart an answer after a retryable error, as long as no text was delivered. Single
            requests are retried anyway.
        max_requests, max_billed_tokens, on_budget: limits of each answer, see `Fusion.stream`.
        temperature: a setting of `Fusion`; a call with another temperature is refused.
        seed: seed of the draws of each answer, by methods that draw. With a seed, equal prompts have equal answers.
        own: messages of single models, by name; see `Fusion.stream`. Traces and caches hold only their digest.
        streaming: whether `invoke` streams internally; callbacks see each token either way.
        method, verifier, unit, tie, draft_length, ask, on_assistant_error, on_special_tokens, tuning: of `Fusion`.

    All limits, `stop`, `max_retries` and `model` can also be given to a call or with `bind`.

    `response_metadata["cosd"]` is the `FusionResult` without text and tokens: acceptance rate, replacements, warnings,
    usage by endpoint. `usage_metadata` is the sum over all endpoints.

    Raises:
        pydantic.ValidationError: a setting is invalid (also a ValueError).
        TypeError: an argument is unknown.
        cosd_providers.ProviderError: from every method; an endpoint failed. It is also a
            `langchain_core.exceptions.ModelError`.
        SettingError: from every method; a message or setting is not supported.
    """

    @property
    def _llm_type(self) -> str:
        return "cosd-chat"

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """The key of an answer in a cache, which must also distinguish models that cannot be saved."""
        named = _without_own(kwargs)
        return super()._get_llm_string(stop=stop, **named) + repr(sorted(self._identifying_params.items()))

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """The settings of an answer, for traces."""
        return super()._get_invocation_params(stop=stop, **_without_own(kwargs))

    def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[ChatGenerationChunk]:
        return self._chunks(conversation(messages), stop, kwargs, run_manager, _chat_chunk)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async with aclosing(self._astream(messages, stop, run_manager, **kwargs)) as chunks:
            return await agenerate_from_stream(chunks)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Generator[ChatGenerationChunk]:
        return self._iterate(partial(self._astream, messages, stop, None, **kwargs), run_manager)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))


class CoSDLLM(LangChainFusion, LLM):
    """Two or more models that continue a raw text, as a LangChain text model.

        model = CoSDLLM(draft="http://gpu1:8080", assistant="http://gpu2:8080")
        model.invoke("Once upon a time")

    Fields, errors and event loops are as in `ChatCoSD`; the models get the text unchanged. `generation_info` holds
    the details of an answer: `finish_reason`, `model_name`, `usage_metadata`, and under `cosd` the `FusionResult`
    without text and tokens. Several prompts are answered at the same time; LangChain shows callbacks only the tokens of
    the first. LangChain's caches find an answer by prompt, model and `stop`: with a cache, give other limits to the
    model, not to the call.
    """

    @property
    def _llm_type(self) -> str:
        return "cosd"

    def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[GenerationChunk]:
        return self._chunks(prompt, stop, kwargs, run_manager, _text_chunk)

    async def _acall(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> str:
        async with aclosing(self._astream(prompt, stop, run_manager, **kwargs)) as chunks:
            return "".join([chunk.text async for chunk in chunks])

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        answers: list[list[GenerationChunk]] = [[] for _ in prompts]

        async def take(at: int, chunk: GenerationChunk) -> None:
            answers[at].append(chunk)
            if at == 0 and run_manager is not None:  # LangChain has a manager for the first prompt only
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)

        await self._answered(prompts, stop, kwargs, take)
        return _together(answers)

    async def _answered(
        self,
        prompts: Sequence[str],
        stop: list[str] | None,
        given: dict[str, Any],
        take: Callable[[int, GenerationChunk], Awaitable[None]],
    ) -> None:
        """Pass the chunks of all answers, several at a time, to `take`, with the number of the prompt."""

        async def one(at: int) -> None:
            async with aclosing(self._astream(prompts[at], stop, None, **given)) as chunks:
                async for chunk in chunks:
                    await take(at, chunk)

        try:
            await concurrently([partial(one, at) for at in range(len(prompts))])
        except ExceptionGroup as group:  # an invalid prompt, or an error in a callback
            raise group.exceptions[0] from None

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Generator[GenerationChunk]:
        return self._iterate(partial(self._astream, prompt, stop, None, **kwargs), run_manager)

    def _call(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> str:
        return "".join(chunk.text for chunk in self._stream(prompt, stop, run_manager, **kwargs))

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        answers: list[list[GenerationChunk]] = [[] for _ in prompts]

        async def work(emit: Callable[[tuple[int, GenerationChunk]], None]) -> None:
            async def take(at: int, chunk: GenerationChunk) -> None:
                emit((at, chunk))

            await self._answered(prompts, stop, kwargs, take)

        with closing(iterate_sync(work, type(self).__name__)) as items:
            for at, chunk in items:
                answers[at].append(chunk)
                if at == 0 and run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
        return _together(answers)


def _without_own(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with a digest of messages that only one model may read."""
    return {name: digest(one) if name == "own" and one is not None else one for name, one in call.items()}


def _together(answers: Sequence[Sequence[GenerationChunk]]) -> LLMResult:
    """Each prompt's chunks as one generation, with the details from the last chunk."""
    whole = [
        Generation(text="".join(chunk.text for chunk in chunks), generation_info=chunks[-1].generation_info)
        for chunks in answers
    ]
    used = [(one.generation_info or {})["usage_metadata"] for one in whole]
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "total_tokens": "total_tokens"}
    sums = {name: sum(usage[theirs] for usage in used) for name, theirs in names.items()}
    output = {"token_usage": sums, "model_name": (whole[0].generation_info or {})["model_name"]} if whole else {}
    return LLMResult(generations=[[one] for one in whole], llm_output=output)


# A fused answer in LangChain's form.


def _chat_chunk(item: FusedToken | FusionResult, model: str | None) -> ChatGenerationChunk:
    """The chunk of a token; for the result the last chunk, with metadata but no text."""
    if isinstance(item, FusedToken):
        return ChatGenerationChunk(message=AIMessageChunk(content=item.text))
    message = AIMessageChunk(
        content="",
        response_metadata=_details(item, model),
        usage_metadata=_usage(item),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)


def _text_chunk(item: FusedToken | FusionResult, model: str | None) -> GenerationChunk:
    """The chunk of a token for a text model; for the result the last chunk, with metadata in `generation_info`."""
    if isinstance(item, FusedToken):
        return GenerationChunk(text=item.text)
    return GenerationChunk(text="", generation_info={**_details(item, model), "usage_metadata": _usage(item)})


def _usage(result: FusionResult) -> UsageMetadata:
    """Tokens billed by all endpoints together, including discarded drafts."""
    used = result.usage.values()
    read, written = sum(one.prompt_tokens for one in used), sum(one.completion_tokens for one in used)
    cached = InputTokenDetails(cache_read=sum(one.cached_tokens for one in used))
    return UsageMetadata(
        input_tokens=read, output_tokens=written, total_tokens=read + written, input_token_details=cached
    )


def _details(result: FusionResult, model: str | None) -> dict[str, Any]:
    """Metadata of an answer; under `cosd` the result without text and tokens."""
    return {
        "model_name": model or "+".join(one.model for one in [result.draft, *result.assistants]),
        "model_provider": "cosd",
        "finish_reason": result.finish_reason,
        "cosd": result.model_dump(mode="json", exclude={"text", "tokens"}),
    }
