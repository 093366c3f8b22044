"""`CoSDLLM`: a fusion as a text model of LangChain's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.llms import LLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from cosd_api.integrations.langchain.answers import text_chunk
from cosd_api.integrations.langchain.fused import Fused
from cosd_api.sync import iterated
from cosd_providers.concurrency import concurrently

__all__ = ["CoSDLLM"]


class CoSDLLM(Fused, LLM):
    """Two or more models that go on from one raw text, as one text model.

        model = CoSDLLM(draft="http://gpu1:8080", assistant="http://gpu2:8080")
        model.invoke("Once upon a time")

    Fields, errors and event loops are those of `ChatCoSD`; the text is given to the models as it is. The details of
    an answer are in `generation_info` of its generation: `finish_reason`, `model_name`, `usage_metadata`, and under
    `cosd` the `FusionResult` without text and tokens. Several prompts are answered at the same time; LangChain lets
    callbacks see the tokens of the first one alone. A cache of LangChain's knows an answer by prompt, model and `stop`:
    with one give other limits to the model, and not to the call.
    """

    @property
    def _llm_type(self) -> str:
        return "cosd"

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[GenerationChunk]:
        name = self._asked_with(stop, kwargs).model
        async with aclosing(self._fused(prompt, stop, kwargs)) as items:
            async for item in items:
                chunk = text_chunk(item, name)
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

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
            if at == 0 and run_manager is not None:  # LangChain gives that of the first prompt alone
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
        """The answers to all prompts, several at a time, each chunk with the number of its prompt."""

        async def one(at: int) -> None:
            async with aclosing(self._astream(prompts[at], stop, None, **given)) as chunks:
                async for chunk in chunks:
                    await take(at, chunk)

        try:
            await concurrently([partial(one, at) for at in range(len(prompts))])
        except ExceptionGroup as group:  # a prompt that is none, or a callback's own fault
            raise group.exceptions[0] from None

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Generator[GenerationChunk]:
        with closing(self._plainly(partial(self._astream, prompt, stop, None, **kwargs))) as chunks:
            for chunk in chunks:
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

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

        with closing(iterated(work, type(self).__name__)) as items:
            for at, chunk in items:
                answers[at].append(chunk)
                if at == 0 and run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
        return _together(answers)


def _together(answers: Sequence[Sequence[GenerationChunk]]) -> LLMResult:
    """Each prompt's chunks as one generation; its details are in the last of them."""
    whole = [
        Generation(text="".join(chunk.text for chunk in chunks), generation_info=chunks[-1].generation_info)
        for chunks in answers
    ]
    used = [(one.generation_info or {})["usage_metadata"] for one in whole]
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens", "total_tokens": "total_tokens"}
    sums = {name: sum(usage[theirs] for usage in used) for name, theirs in names.items()}
    told = {"token_usage": sums, "model_name": (whole[0].generation_info or {})["model_name"]} if whole else {}
    return LLMResult(generations=[[one] for one in whole], llm_output=told)
