"""One model in several event loops, in threads and without any: what is opened is closed, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass, field
from threading import Barrier, Thread
from typing import Any, Self, cast

import anyio
import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from cosd_api.apps.demo.servers import Pair
from cosd_api.apps.langchain import ChatCoSD, CoSDLLM
from cosd_api.common.sync import sync_portal
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from toys.lima import DRAFT, FUSED, assistant

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"
ANSWER = " The capital of Peru is Lima and the total is 42."


@dataclass
class Watched(ScriptedProvider):
    """Who enters it, in which loop; how many drafts were under way at once, where none begins before `wanted` are."""

    inside: list[asyncio.AbstractEventLoop] = field(default_factory=list)
    entered: int = 0
    drafts: int = 0
    most: int = 0
    wanted: int = 1
    enough: anyio.Event = field(default_factory=anyio.Event)

    async def __aenter__(self) -> Self:
        self.inside.append(asyncio.get_running_loop())
        self.entered += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.inside.remove(asyncio.get_running_loop())

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Any]:
        self.drafts += 1
        self.most = max(self.most, self.drafts)
        try:
            if self.most >= self.wanted:
                self.enough.set()
            with anyio.fail_after(10):
                await self.enough.wait()
            async with aclosing(super().generate(*args, **options)) as tokens:
                async for token in tokens:
                    yield token
        finally:
            self.drafts -= 1


def watched(**options: Any) -> Watched:
    return Watched(TextModel(DRAFT), **options)


def llm(draft: Watched, **fields: Any) -> CoSDLLM:
    return CoSDLLM(draft=draft, assistant=assistant(), **fields)


def settled(until: Callable[[], bool]) -> None:
    """Gives the loop behind the sync methods its turns."""
    for _ in range(1000):
        if until():
            return
        sync_portal().call(anyio.lowlevel.checkpoint)
    raise AssertionError("it did not come to that")


def test_each_loop_has_its_own_connections_and_closes_them() -> None:
    draft = watched()
    model = llm(draft)
    assert model.invoke("Q:") == FUSED
    for _ in range(2):
        assert asyncio.run(several(model)) == [FUSED] * 3
        assert len(draft.inside) == 1  # that of the sync methods; those of the loop have gone with it
    assert model.invoke("Q:") == FUSED
    assert draft.entered == 3
    assert len(model._fusions._open) == 1  # loops that have ended are forgotten


async def several(model: CoSDLLM) -> list[str]:
    return [await model.ainvoke("Q:"), model.invoke("Q:"), "".join([token async for token in model.astream("Q:")])]


async def test_many_at_once_open_it_once() -> None:
    draft = watched()
    model = llm(draft)
    assert await model.abatch(["Q:"] * 4) == [FUSED] * 4
    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(model.ainvoke, "Q:")
    assert draft.entered == 1


def test_threads_share_the_loop_behind_the_sync_methods() -> None:
    draft, barrier, answers = watched(), Barrier(4), list[str]()
    model = llm(draft)

    def ask() -> None:
        barrier.wait()
        answers.append(model.invoke("Q:"))

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [FUSED] * 4
    assert draft.entered == 1


def test_a_model_that_nobody_has_closes_what_it_held() -> None:
    draft = watched()
    model = llm(draft)
    model.invoke("Q:")
    assert len(draft.inside) == 1
    del model
    gc.collect()
    settled(lambda: not draft.inside)


def test_a_failed_opening_is_tried_again() -> None:
    @dataclass
    class Shy(Watched):
        async def __aenter__(self) -> Self:
            if self.entered == 0:
                self.entered = 1
                raise RuntimeError("not yet")
            return await super().__aenter__()

    model = llm(Shy(TextModel(DRAFT)))
    with pytest.raises(RuntimeError, match="not yet"):
        model.invoke("Q:")
    assert model.invoke("Q:") == FUSED


# ------------------------------------------------------------------------------------------------------ left early


def test_a_stream_that_is_left_early_is_over() -> None:
    draft = watched(faults=[Fault(None, tokens=2)])  # which would hang
    tokens = cast("Generator[str]", llm(draft).stream("Q:"))
    assert next(tokens) == " The"
    assert draft.open_requests == 1
    tokens.close()
    assert draft.open_requests == 0


async def test_an_async_stream_that_is_left_early_is_over() -> None:
    draft = watched(faults=[Fault(None, tokens=2)])
    async with aclosing(cast("AsyncGenerator[str]", llm(draft).astream("Q:"))) as tokens:
        async for token in tokens:
            assert token == " The"
            break
    with anyio.fail_after(5):
        while draft.open_requests:  # LangChain leaves it to the loop to close what it has begun
            await anyio.lowlevel.checkpoint()


def test_a_loop_that_ends_ends_the_streams_that_were_left_in_it() -> None:
    draft = watched(faults=[Fault(None, tokens=2)])
    kept = []

    async def begin() -> None:
        kept.append(llm(draft).astream("Q:"))
        assert await anext(kept[0]) == " The"

    asyncio.run(begin())
    assert (draft.open_requests, draft.inside) == (0, [])


async def test_a_cancelled_answer_is_over() -> None:
    draft = watched(faults=[Fault(None, tokens=2)])
    with anyio.move_on_after(0.05):
        await llm(draft).ainvoke("Q:")
    assert draft.open_requests == 0


def test_a_sync_call_from_the_loop_that_would_answer_it_is_refused() -> None:
    model = llm(watched())

    async def ask(call: Callable[[str], Any]) -> None:
        list(call("Q:"))

    for call in (model.invoke, model.stream, model.get_token_ids):
        with pytest.raises(RuntimeError, match="was called from code that it runs itself"):
            sync_portal().call(ask, call)


# ------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("kind", [CoSDLLM, ChatCoSD])
async def test_batches_are_answered_at_the_same_time(kind: type[Any]) -> None:
    def made(most: int) -> Watched:
        return watched(wanted=most, template=lambda _: "Q:")

    for limit, most in ((None, 4), (2, 2)):
        for asynchronous in (False, True):
            draft = made(most)
            model = kind(draft=draft, assistant=assistant(template=lambda _: "Q:"))
            several, config = ["Q:"] * 4, {"max_concurrency": limit}
            answers = await model.abatch(several, config) if asynchronous else model.batch(several, config)
            assert {getattr(answer, "content", answer) for answer in answers} == {FUSED}
            assert draft.most == most


# ------------------------------------------------------------------------------------------------------ live


@pytest.mark.live
def test_real_connections_in_several_loops(pair: Pair) -> None:
    model = CoSDLLM(draft=pair.sums, assistant=pair.facts)

    async def ask() -> list[str]:
        tokens = model.astream(PROMPT)
        first = await anext(tokens)
        return [first, await model.ainvoke(PROMPT)]  # the stream is left as it is

    assert model.invoke(PROMPT) == ANSWER
    assert [asyncio.run(ask()) for _ in range(2)] == [[" The", ANSWER]] * 2
    assert next(model.stream(PROMPT)) == " The"
    assert model.batch([PROMPT] * 2) == [ANSWER] * 2
    gc.collect()  # a connection that is left open is an error here


@pytest.mark.live
def test_real_connections_of_a_model_that_ends_with_its_loop(pair: Pair) -> None:
    async def ask() -> str:
        return await CoSDLLM(draft=pair.sums, assistant=pair.facts).ainvoke(PROMPT)

    assert asyncio.run(ask()) == ANSWER
    gc.collect()


@pytest.mark.live
async def test_a_chain(pair: Pair) -> None:
    prompt = ChatPromptTemplate.from_messages(
        [("human", "In {country} a book costs 17 and a pen costs 25. Name the capital and the total.")]
    )
    chain = prompt | ChatCoSD(draft=pair.sums, assistant=pair.facts) | StrOutputParser()
    assert (await chain.ainvoke({"country": "Peru"})).strip() == ANSWER.strip()
    tokens = [token async for token in chain.astream({"country": "Peru"})]
    assert "".join(tokens).strip() == ANSWER.strip()
    assert len(tokens) > 10
