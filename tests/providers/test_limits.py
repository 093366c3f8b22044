"""Rate limits: requests in flight, requests and tokens per minute."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import Limits, Question, Usage, connect
from cosd_providers.contract import Context
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.http.limits import _Queue
from cosd_providers.http.transport import Transport
from cosd_providers.testing import TextModel
from fakes.llama_cpp import FakeLlamaCpp
from support.asked import draft

URL = "http://gpu:8080"
EVENTS = {"content-type": "text/event-stream"}


class Server:
    """A server whose answers wait until they are released.

    Attributes:
        under_way: what it is doing: the paths.
        most: how many at once there ever were.
        came: what has come, in order.
        opened: set while answers are given.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.under_way: list[str] = []
        self.most = 0
        self.came: list[str] = []
        self.opened = anyio.Event()
        if opened:
            self.opened.set()

    def transport(self, **limits: Any) -> Transport:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        return Transport(URL, http_client=client, limits=Limits(**limits))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.came.append(path)
        self.under_way.append(path)
        self.most = max(self.most, len(self.under_way))
        if request.headers["accept"] == "text/event-stream":
            return httpx.Response(200, headers=EVENTS, content=self._events(path))
        try:
            await self.opened.wait()
        finally:
            self.under_way.remove(path)
        return httpx.Response(200, json=1)

    async def _events(self, path: str) -> AsyncIterator[bytes]:
        try:
            yield b'data: {"a": 1}\n\n'
            await self.opened.wait()
            yield b'data: {"a": 2}\n\n'
        finally:
            self.under_way.remove(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number above 0, or None for no limit, not 0"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"requests_per_minute": 0}, "requests_per_minute must be a number above 0, or None for no limit, not 0"),
        ({"requests_per_minute": "60"}, "requests_per_minute must be a number above 0"),
        ({"tokens_per_minute": -1.0}, "tokens_per_minute must be a number above 0"),
        ({"tokens_per_minute": math.inf}, "tokens_per_minute must be a number above 0"),
        ({"tokens_per_minute": math.nan}, "tokens_per_minute must be a number above 0"),
    ],
)
def test_values_that_are_none(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Limits(**given)


def test_the_limits_of_something_else() -> None:
    theirs: Any = httpx.Limits(max_connections=3)
    with pytest.raises(
        TypeError, match=r"limits must be cosd_providers.Limits; limits of an HTTP client belong to the"
    ):
        Transport(URL, limits=theirs)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "tgi", "openai", "together"])
def test_every_adapter_takes_them_and_copies_keep_them(engine: str) -> None:
    limits = Limits(concurrency=2, requests_per_minute=0.5)
    provider: Any = connect(URL, engine=engine, model="m", limits=limits)
    assert provider._transport.limits == limits
    assert pickle.loads(pickle.dumps(provider))._transport.limits == limits


def test_who_only_asks_what_it_is_leaves_them_to_the_adapter() -> None:
    limits = Limits(concurrency=2)
    detected: Any = connect(URL, limits=limits)
    assert detected._transport.limits == Limits()
    assert detected._make("vllm")._transport.limits == limits


# Requests under way.


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=12))
async def test_no_more_at_once_and_all_come_through(concurrency: int, streams: list[bool]) -> None:
    server = Server()
    transport = server.transport(concurrency=concurrency)

    async def ask(stream: bool) -> None:
        if stream:
            async with transport.stream("/stream", {}, usage=Usage()) as events:
                assert [event["a"] async for event in events] == [1, 2]
        else:
            assert await transport.post("/post", {}, usage=Usage()) == 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for stream in streams:
                group.start_soon(ask, stream)
            await settle()
            assert len(server.under_way) == min(concurrency, len(streams))
            server.opened.set()
    assert server.most <= concurrency
    assert len(server.came) == len(streams)


async def test_what_the_model_does_not_work_on_does_not_count() -> None:
    server = Server(opened=True)
    transport = server.transport(concurrency=1, requests_per_minute=1)
    with anyio.fail_after(20):
        async with transport.stream("/draft", {}, usage=Usage()) as events:
            await anext(events)
            for _ in range(3):
                await transport.get("/props")
                await transport.post("/tokenize", {})
    assert server.came == ["/draft", *["/props", "/tokenize"] * 3]


async def test_a_draft_that_is_not_being_read_lets_others_pass_but_no_draft() -> None:
    server = Server()
    transport = server.transport(concurrency=1)

    async def read() -> None:
        async with transport.stream("/other", {}, usage=Usage()) as events:
            await anext(events)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            async with transport.stream("/draft", {}, usage=Usage()) as events:
                await anext(events)
                group.start_soon(read)
                group.start_soon(transport.post, "/first", {})  # small
                await settle()
                assert server.came == ["/draft", "/first"]
                server.opened.set()
                assert await transport.post("/ask", {}, usage=Usage()) == 1
                await settle()
                assert server.came == ["/draft", "/first", "/ask"]
            await settle()
            assert server.came[-1] == "/other"


async def test_a_draft_that_is_being_read_does_not() -> None:
    server = Server()
    transport = server.transport(concurrency=1)

    async def read() -> None:
        async with transport.stream("/draft", {}, usage=Usage()) as events:
            assert len([event async for event in events]) == 2

    async def ask() -> None:
        await transport.post("/ask", {}, usage=Usage())

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await settle()
            group.start_soon(ask)
            await settle()
            assert server.came == ["/draft"]
            server.opened.set()
    assert server.came == ["/draft", "/ask"]
    assert server.most == 1


async def test_one_that_drafts_and_assists_does_not_wait_for_itself() -> None:
    server = FakeLlamaCpp(TextModel({"Q": [" a", " b"]}))
    provider = LlamaCpp(URL, http_client=server.client(), limits=Limits(concurrency=1))
    with anyio.fail_after(20):
        tokens = provider.generate(Context("Q", b""), max_tokens=2, usage=Usage())
        assert (await anext(tokens)).data == b" a"  # type: ignore[union-attr]
        [found] = await provider.propose(Context("Q", b" a"), [Question(2, (b" b",))], usage=Usage())
        assert found is not None
        assert [token.data for token in found.tokens] == [b" b"]
        await tokens.aclose()
        assert len(await draft(provider, limit=2)) == 3


async def test_who_is_cancelled_when_its_turn_has_come_gives_it_back() -> None:
    queue, tasks = _Queue(1), list[Any]()
    await queue.take(draft=False)

    async def wait() -> None:
        tasks.append(asyncio.current_task())
        await queue.take(draft=False)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await settle()
        queue.leave()
        tasks[0].cancel()
    assert queue.in_flight == 0


async def test_who_is_cancelled_while_waiting_leaves_no_trace() -> None:
    server = Server()
    transport = server.transport(concurrency=1)
    scopes = [anyio.CancelScope() for _ in range(3)]
    usages = [Usage() for _ in scopes]

    async def ask(number: int) -> None:
        with scopes[number]:
            await transport.post(f"/{number}", {}, usage=usages[number])

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(ask, number)
                await settle()
            assert server.came == ["/0"]
            scopes[1].cancel()
            await settle()
            server.opened.set()
    assert server.came == ["/0", "/2"]
    assert [usage.requests for usage in usages] == [1, 0, 1]
    with anyio.fail_after(20):
        await transport.post("/last", {}, usage=Usage())


async def test_an_error_gives_the_place_back() -> None:
    transport = Transport(
        URL,
        http_client=httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(400))),
        limits=Limits(concurrency=1),
    )
    for _ in range(3):
        with anyio.fail_after(20), pytest.raises(ValueError, match="400"):
            await transport.post("/go", {}, usage=Usage())


# A minute, in a loop whose clock jumps to what it waits for.


@pytest.fixture
def clock(anyio_backend: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's clock moves only in its waits, each by exactly the requested time."""
    real = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]
    passed: dict[Any, float] = {}

    def run_once(loop: Any) -> None:
        if not loop._ready and loop._scheduled and not loop._stopping:
            now, then = passed.get(loop, 0.0), loop._scheduled[0]._when
            passed[loop] = then if then > now else now + 1e-6  # as time always goes on
        real(loop)

    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", run_once)
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: passed.get(loop, 0.0))


class Metered:
    """A server that notes when requests come, and bills them.

    Attributes:
        times: seconds since the first one.
    """

    def __init__(self, **limits: Any) -> None:
        self.times: list[float] = []
        self.answers: list[httpx.Response] = []
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        self.transport = Transport(URL, http_client=client, limits=Limits(**limits))

    async def ask(self, usage: Usage | None = None, tokens: int = 0) -> None:
        usage = usage or Usage()
        await self.transport.post("/go", {}, usage=usage)
        usage.bill(tokens - 1 if tokens else 0, 1 if tokens else 0)

    def since(self) -> list[float]:
        return [round(time - self.times[0], 3) for time in self.times]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.times.append(asyncio.get_running_loop().time())
        return self.answers.pop(0) if self.answers else httpx.Response(200, json=1)


@pytest.mark.parametrize(
    ("rate", "times"), [(2, [0, 0, 30, 60, 90]), (60, [0] * 5), (0.5, [0, 120, 240, 360, 480]), (1.5, [0, 20, 60])]
)
async def test_requests_in_a_minute(clock: None, rate: float, times: list[float]) -> None:
    server = Metered(requests_per_minute=rate)
    for _ in times:
        await server.ask()
    assert server.since() == times


async def test_those_that_wait_come_in_their_order(clock: None) -> None:
    server = Metered(requests_per_minute=1)
    done: list[int] = []

    async def ask(number: int) -> None:
        await server.ask()
        done.append(number)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(ask, number)
    assert server.since() == [0, 60, 120, 180]
    assert done == [0, 1, 2, 3]


async def test_each_attempt_counts(clock: None) -> None:
    server = Metered(requests_per_minute=1)
    server.answers = [httpx.Response(503)] * 2
    usage = Usage()
    await server.ask(usage)
    assert server.since() == [0, 60, 120]
    assert (usage.requests, usage.retries) == (1, 2)


async def test_tokens_are_paid_for_by_the_next_request(clock: None) -> None:
    server = Metered(tokens_per_minute=100)
    usage = Usage()
    await server.ask(usage, 250)  # its cost is not known before
    await server.ask(usage, 10)  # of 250, 100 are within the minute
    await server.ask(usage, 0)  # of 10, none
    await server.ask(usage, 0)
    assert server.since() == [0, 90, 96, 96]


async def test_a_bill_is_not_lost_with_its_fusion(clock: None) -> None:
    server = Metered(tokens_per_minute=100)
    await server.ask(tokens=200)
    gc.collect()
    await server.ask()
    assert server.since() == [0, 60]
    await server.ask(Usage(prompt_tokens=5000))  # billed before, and not here
    await server.ask()
    assert server.since() == [0, 60, 60, 60]


async def test_who_is_cancelled_has_not_paid_for_the_others(clock: None) -> None:
    server = Metered(tokens_per_minute=100)
    await server.ask(tokens=400)
    with anyio.move_on_after(61):
        await server.ask()
    await server.ask()
    assert server.since() == [0, 180]


def test_each_event_loop_has_its_own() -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=1)))
    transport = Transport(URL, http_client=client, limits=Limits(1, 1, 1))

    async def ask() -> None:
        with anyio.fail_after(20):
            await transport.post("/go", {}, usage=Usage())

    for _ in range(3):
        asyncio.run(ask())
    assert len(transport._limiter._loops) == 1  # those that are closed are forgotten
