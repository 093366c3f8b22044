"""`ChatCoSD`: a fusion of chat models as a chat model of LangChain's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from cosd_api.integrations.langchain.answers import chat_chunk
from cosd_api.integrations.langchain.fused import Fused
from cosd_api.integrations.langchain.messages import conversation

__all__ = ["ChatCoSD"]


class ChatCoSD(Fused, BaseChatModel):
    """Two or more chat models that write one answer, as one chat model.

        model = ChatCoSD(draft="http://gpu1:8080", assistant="http://gpu2:8080")
        model.invoke("Name the capital of Peru.").content

    Each model reads the conversation through its own chat template; a last message of the assistant is a started
    answer, and what comes is its rest. Messages are text; tools, images and structured output are refused.

    Each event loop has its own connections, opened at the first answer there and closed with the loop
    (`asyncio.run` does so). Methods that are not async share the loop of `fuse_sync`, in a thread of its own.

    Attributes:
        draft: the model that writes: URL or provider (`cosd_api.connect`). By default `COSD_DRAFT_URL`.
        assistant: the one that is asked, or several. By default `COSD_ASSISTANT_URL`, which may name several with
            spaces between.
        fusion: instead of these and their settings a `Fusion`, which need not be open: it is what those that are opened
            are like, over the same providers.
        api_key: for servers given as URLs; refused where they are at different hosts, as a key goes to none that it
            was not meant for. Then each has its own, by `connect(url, api_key=...)` or `COSD_API_KEY_<HOST>`.
        model: a name for people, in `response_metadata["model_name"]` and in traces; it chooses nothing. By default the
            names of the servers' models. Which of its models a server uses is said with `connect(url, model=...)`.
        max_tokens: of the answer, its end included; 256 by default.
        stop: strings; the answer ends before the first one.
        timeout: seconds for the whole answer.
        max_retries: how often an answer is begun anew after an error that may pass, as long as none of it was given;
            each request is tried several times anyway.
        max_requests, max_billed_tokens, on_budget: limits of each answer, see `Fusion.stream`.
        temperature: none or 0; any other is refused, as the draft is greedy by definition.
        streaming: whether `invoke` is a stream inside; callbacks see each token either way.
        verifier, unit, draft_length, ask, on_assistant_error, on_special_tokens, tuning: settings of `Fusion`.

    All limits, `stop`, `max_retries` and `model` can be given to a call, or with `bind`, too.

    `response_metadata["cosd"]` is the `FusionResult` without text and tokens: acceptance rate, replacements, warnings,
    usage by endpoint. `usage_metadata` is what all endpoints together bill.

    Raises:
        pydantic.ValidationError: a setting that a fusion cannot take, with the reason (also a ValueError).
        TypeError: an argument that nobody knows.
        cosd_providers.ProviderError: from every method, where an endpoint failed. It is one of
            `langchain_core.exceptions.ModelError`'s kinds, too.
        SettingError: from every method: messages or settings that a fusion does not take.
    """

    @property
    def _llm_type(self) -> str:
        return "cosd-chat"

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """By what an answer is found in a cache: what cannot be saved would look alike."""
        return super()._get_llm_string(stop=stop, **kwargs) + repr(sorted(self._identifying_params.items()))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[ChatGenerationChunk]:
        name = self._asked_with(stop, kwargs).model
        async with aclosing(self._fused(conversation(messages), stop, kwargs)) as items:
            async for item in items:
                chunk = chat_chunk(item, name)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

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
        with closing(self._plainly(partial(self._astream, messages, stop, None, **kwargs))) as chunks:
            for chunk in chunks:
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))
