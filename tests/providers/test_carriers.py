"""Transports over each library that may carry HTTP: limits of time and size, copies, loops, and what requests leave."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from anyio.abc import SocketAttribute, SocketStream

from cosd_providers import ConnectError, InvalidRequestError, ProviderTimeoutError, ResponseError, Usage
from cosd_providers.http import clients
from cosd_providers.http.transport import Transport

pytestmark = pytest.mark.usefixtures("each_stack")

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
ANSWER = b"HTTP/1.1 %d Whatever\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
GONE = (anyio.EndOfStream, anyio.BrokenResourceError)


@asynccontextmanager
async def server(handle: Callable[[SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A server on loopback that runs `handle` for each connection."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with suppress(*GONE):
                await handle(stream)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def received(stream: SocketStream) -> bytes:
    """The next request, headers and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")] or [0]
    while len(body) < length:
        body += await stream.receive()
    return head + b"\r\n\r\n" + body


def answering(status: int, body: bytes, head: bytes | None = None) -> Callable[[SocketStream], Awaitable[None]]:
    """A server that answers every request in this way."""

    async def handle(stream: SocketStream) -> None:
        while True:
            await received(stream)
            await stream.send(ANSWER % (status, len(body), body) if head is None else head + body)
            if head is not None:
                return

    return handle


class Clock:
    """The clock of the event loop, which a test puts forward: limits of time pass without waiting."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._ahead = 0.0
        self._loop.time = self._now  # type: ignore[method-assign]

    async def put_forward(self, seconds: float) -> None:
        """Let this time pass, and timers go off."""
        self._ahead += seconds
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    def _now(self) -> float:
        return self._time() + self._ahead


# Limits of time.


async def test_the_limit_for_reading_counts_from_the_last_bytes() -> None:
    """A body may take longer than the limit in all; once nothing more comes, it is over."""
    clock = Clock()
    parts, sent = anyio.create_memory_object_stream[bytes](1)
    events, got = anyio.create_memory_object_stream[Any](1)

    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send(STREAM)
        async for part in sent:
            await stream.send(part)

    async def read(found: Transport) -> None:
        async with found.stream("/go", {}, usage=Usage()) as stream:
            async for event in stream:
                await events.send(event)

    async def read_until_it_fails(found: Transport) -> None:
        with events, pytest.raises(ProviderTimeoutError, match="the answer stopped: nothing more within 600 s"):
            await read(found)

    async with parts, sent, got, server(handle) as url, Transport(url, timeout=600) as found:  # noqa: SIM117
        async with anyio.create_task_group() as group:
            group.start_soon(read_until_it_fails, found)
            for number in range(5):  # 2,500 s in all
                await parts.send(b'data: {"a": %d}\n\n' % number)
                assert await got.receive() == {"a": number}
                await clock.put_forward(500)
            await clock.put_forward(101)
            with pytest.raises(anyio.EndOfStream):
                await got.receive()


async def test_headers_that_do_not_end_are_not_waited_for() -> None:
    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send(STREAM[:30])
        await stream.receive()

    async with server(handle) as url, Transport(url, timeout=0.1) as found:
        with pytest.raises(ProviderTimeoutError, match=r"no answer within 0.1 s"):
            async with found.stream("/go", {}, usage=Usage(), attempt=1) as stream:
                await anext(stream)


@pytest.mark.usefixtures("no_waiting")
async def test_an_answer_behind_an_interim_one_is_not_waited_for() -> None:
    """The limit holds behind a `100 Continue`, too, after which the server is silent."""

    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await stream.receive()

    async with server(handle) as url, Transport(url, timeout=0.1) as found:
        with pytest.raises(ProviderTimeoutError, match=r"no answer within 0.1 s"):
            await found.post("/go", {}, usage=Usage())


async def test_a_body_of_an_answer_that_stops_is_not_waited_for() -> None:
    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send((ANSWER % (200, 9, b"[1, 2, 3]"))[:-1])
        await stream.receive()

    async with server(handle) as url, Transport(url, timeout=0.1) as found:
        with pytest.raises(ProviderTimeoutError, match=r"the answer stopped: nothing more within 0.1 s"):
            await found.get("/props", once=True)


async def test_a_chunk_that_cannot_be_read_breaks_the_answer_off() -> None:
    """It comes by itself while somebody waits for it, and the server leaves the connection open."""
    clock, waits, over = Clock(), anyio.Event(), anyio.Event()

    async def handle(stream: SocketStream) -> None:
        await received(stream)
        head = STREAM.replace(b"connection: close", b"transfer-encoding: chunked")
        await stream.send(head + b'10\r\ndata: {"a": 0}\n\n\r\n')
        await waits.wait()
        await stream.send(b"zz\r\n")
        await over.wait()

    async def read(stream: AsyncIterator[Any]) -> None:
        with pytest.raises(ResponseError, match="broke in the middle of the answer"):
            await anext(stream)
        over.set()

    async with (
        server(handle) as url,
        Transport(url) as found,
        found.stream("/go", {}, usage=Usage()) as stream,
        anyio.create_task_group() as tasks,
    ):
        assert await anext(stream) == {"a": 0}
        tasks.start_soon(read, stream)
        waits.set()
        for _ in range(100):  # of the 600 seconds that the limit for reading leaves
            if not over.is_set():
                await anyio.sleep(0.01)
                await clock.put_forward(1)
        assert over.is_set()


async def test_who_reads_late_is_not_too_late() -> None:
    """The limit is on waiting for the server, and not on what the reader does between two events."""
    clock = Clock()

    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send(STREAM + b'data: {"a": 0}\n\n')
        await more.wait()
        await stream.send(b'data: {"a": 1}\n\n')

    more = anyio.Event()
    async with (
        server(handle) as url,
        Transport(url, timeout=600) as found,
        found.stream("/go", {}, usage=Usage()) as stream,
    ):
        assert await anext(stream) == {"a": 0}
        await clock.put_forward(5000)
        more.set()
        assert [event async for event in stream] == [{"a": 1}]


async def test_no_timer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that was read, left or cancelled is not kept by the event loop until its limit is over."""
    monkeypatch.setattr("cosd_providers.http.fast._LOOK_SECONDS", 600.0)
    timers: list[Any] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]

    def left() -> int:
        return sum(not timer.cancelled() and timer.when() > asyncio.get_running_loop().time() + 300 for timer in timers)

    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send(STREAM + b'data: {"a": 0}\n\n')
        await stream.receive()

    before = left()
    async with server(handle) as url, Transport(url, timeout=600) as found:
        async with found.stream("/go", {}, usage=Usage()) as stream:
            assert await anext(stream) == {"a": 0}
        with anyio.CancelScope() as scope:
            async with found.stream("/go", {}, usage=Usage()) as stream:
                assert await anext(stream) == {"a": 0}
                async with anyio.create_task_group() as group:
                    group.start_soon(_next, stream)
                    await anyio.wait_all_tasks_blocked()
                    assert left() > before  # somebody waits
                    scope.cancel()
        assert scope.cancelled_caught
        assert left() == before


async def _next(stream: AsyncIterator[Any]) -> None:
    await anext(stream)


# Sizes.


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """The longest answer and event, in bytes; of an error, so many are read."""
    for name in ("_LONGEST", "_LONGEST_ERROR"):
        monkeypatch.setattr(f"cosd_providers.http.streams.{name}", 1 << 16)
    return 1 << 16


async def test_answers_are_not_longer_than_the_limit(small: int) -> None:
    whole = b'"' + b"x" * (small - 2) + b'"'
    async with server(answering(200, whole)) as url, Transport(url) as found:
        assert await found.get("/props") == "x" * (small - 2)
    async with server(answering(200, whole + b" ")) as url, Transport(url) as found:
        with pytest.raises(ResponseError, match="the answer is longer than"):
            await found.get("/props")
    async with server(answering(400, b'{"error": "' + b"x" * small)) as url, Transport(url) as found:
        with pytest.raises(InvalidRequestError, match="HTTP status 400"):
            await found.get("/props")


async def test_events_are_not_longer_than_the_limit(small: int) -> None:
    """But a stream may be, and a server that sends one event in many parts is not read to the end."""
    event = b'data: {"a": "' + b"x" * (small // 2) + b'"}\n\n'
    async with server(answering(200, event * 4, STREAM)) as url, Transport(url) as found:
        assert len(await events_of(found)) == 4
    async with server(answering(200, b"data: " + b"x" * 2 * small, STREAM)) as url, Transport(url) as found:
        with pytest.raises(ResponseError, match="the answer is longer than"):
            await events_of(found)


async def events_of(found: Transport) -> list[dict[str, Any]]:
    """All events of a stream."""
    async with found.stream("/go", {}, usage=Usage()) as stream:
        return [event async for event in stream]


async def test_large_requests_arrive() -> None:
    """Of each size that is sent in its own way."""
    sizes = list[int]()

    async def handle(stream: SocketStream) -> None:
        while True:
            sizes.append(len((await received(stream)).partition(b"\r\n\r\n")[2]))
            await stream.send(ANSWER % (200, 1, b"1"))

    wanted = (100, 1 << 17, 1 << 22)
    async with server(handle) as url, Transport(url) as found:
        for size in wanted:
            assert await found.post("/go", "x" * (size - 2), usage=Usage()) == 1
    assert tuple(sizes) == wanted


# URLs.


async def test_paths_are_sent_in_ascii() -> None:
    """A space would end the path, and all carriers ask for the same one."""
    lines = list[bytes]()

    async def handle(stream: SocketStream) -> None:
        lines.append((await received(stream)).partition(b"\r\n")[0])
        await stream.send(ANSWER % (200, 1, b"1"))

    async with server(handle) as url:
        for path in ("/my path/é", "/my%20path/%C3%A9"):
            async with Transport(url + path) as found:
                assert await found.get("/props", once=True) == 1
    assert lines == [b"GET /my%20path/%C3%A9/props HTTP/1.1"] * 2


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".invalid"])
async def test_what_cannot_be_a_host_is_an_error_of_the_library(host: str) -> None:
    async with Transport(f"http://{host}") as found:
        with pytest.raises(ConnectError, match="Is the host's name right"):
            await found.get("/props", once=True)


# Copies, loops, certificates.


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
async def test_copies_of_a_transport_in_use_have_connections_of_their_own(twin: Callable[[Any], Transport]) -> None:
    connections = 0

    async def handle(stream: SocketStream) -> None:
        nonlocal connections
        connections += 1
        number = b"%d" % connections
        while True:
            await received(stream)
            await stream.send(ANSWER % (200, 1, number))

    async with server(handle) as url, Transport(url, api_key="secret-key", headers={"X": "secret"}) as found:
        assert await found.get("/props") == 1
        async with twin(found) as other:
            assert b"secret" not in pickle.dumps(other)
            assert await other.get("/props") == 2
            assert await other.get("/props") == 2
        assert await found.get("/props") == 1


def test_loops_in_threads_at_the_same_time_have_clients_of_their_own() -> None:
    here, answers, found = threading.Barrier(3), list[Any](), list[Transport]()

    async def ask() -> None:
        async with found[0]:
            for _ in range(3):
                await anyio.to_thread.run_sync(here.wait)  # all have a client, and nobody has closed it
                answers.append(await found[0].get("/props"))

    def run() -> None:
        asyncio.run(ask())

    async def serve() -> None:
        async with server(answering(200, b"1")) as url:
            found.append(Transport(url))
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(anyio.to_thread.run_sync, run)

    asyncio.run(serve())
    assert answers == [1] * 9
    assert len(found[0]._clients) == 0


async def test_certificates_are_read_for_https_alone_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[ssl.SSLContext]()

    def create() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", create)
    clients._certificates.cache_clear()
    try:
        async with server(answering(200, b"1")) as url:
            async with Transport(url) as found:
                assert await found.get("/props") == 1
            assert made == []
            for _ in range(2):
                async with Transport(url.replace("http:", "https:"), timeout=0.3) as found:
                    with pytest.raises(Exception, match=r"no connection|connection broke"):
                        await found.get("/props", once=True)
            assert len(made) == 1
    finally:
        clients._certificates.cache_clear()


# Connections.


@dataclass
class Counting:
    """A server that answers with the number of the connection: in whole answers, or to POST as events.

    Attributes:
        url: its URL.
        open: connections that are open.
        together: the number of requests that are answered at the same time.
    """

    url: str = ""
    open: set[int] = field(default_factory=set)
    together: int = 1
    _count: int = 0
    _asked: int = 0
    _turn: anyio.Event = field(default_factory=anyio.Event)
    _closed: anyio.Event = field(default_factory=anyio.Event)

    async def handle(self, stream: SocketStream) -> None:
        self._count += 1
        number = self._count
        self.open.add(number)
        try:
            while True:
                await self._answer(stream, number)
        finally:
            self.open.discard(number)
            self._closed.set()

    async def _answer(self, stream: SocketStream, number: int) -> None:
        request = await received(stream)
        self._asked += 1
        turn = self._turn
        if self._asked == self.together:
            turn.set()
            self._asked, self._turn = 0, anyio.Event()
        await turn.wait()
        body = b'data: {"a": %d}\n\n' % number
        head = STREAM.replace(b"connection: close", b"content-length: %d" % len(body))
        await stream.send(ANSWER % (200, len(b"%d" % number), b"%d" % number) if request[:3] == b"GET" else head + body)

    async def only(self, most: int) -> None:
        """Wait until no more connections are open."""
        while len(self.open) > most:
            self._closed = anyio.Event()
            await self._closed.wait()


@asynccontextmanager
async def counting() -> AsyncIterator[Counting]:
    found = Counting()
    async with server(found.handle) as found.url:
        yield found


async def test_a_stream_that_closes_its_connection_takes_one_that_is_open() -> None:
    """So that one which was opened before it is needed (`Ready.keep_ready`) saves a round trip."""
    async with counting() as answering, Transport(answering.url) as found:
        for number in (1, 2, 3):
            assert await found.get("/health") == number
            async with found.stream("/go", {}, usage=Usage(), keep_alive=False) as stream:
                assert [event async for event in stream] == [{"a": number}]


async def test_a_connection_whose_closing_is_cancelled_is_not_kept() -> None:
    """Nor forgotten: it would stay open until the whole client is closed."""

    class Cancelled(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"1"

        async def aclose(self) -> None:
            raise asyncio.CancelledError

    kept = list[bool]()

    async def left(complete: bool) -> None:
        kept.append(complete)

    body = clients._HttpxBody(Cancelled(), left)
    assert [part async for part in body] == [b"1"]
    with pytest.raises(asyncio.CancelledError):
        await body.aclose()
    await body.aclose()
    assert kept == [False]


async def test_the_number_of_idle_connections_can_change() -> None:
    """Of ten requests at the same time so many connections are kept, and the next ones take these."""
    async with counting() as answering, Transport(answering.url, idle=2) as found:
        for idle in (2, 5, 1):
            found.idle, answering.together = idle, 10
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(found.get, "/props")
            await answering.only(idle)
            kept = {*answering.open}
            assert len(kept) == idle
            answering.together = 1
            assert await found.get("/props") in kept
    await answering.only(0)


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    """Without a retry: it is known by then."""
    closed = anyio.Event()

    async def handle(stream: SocketStream) -> None:
        await received(stream)
        await stream.send(ANSWER % (200, 1, b"1"))
        await stream.aclose()
        closed.set()

    usage = Usage()
    async with server(handle) as url, Transport(url) as found:
        for _ in range(3):
            assert await found.post("/go", {}, usage=usage) == 1
            await closed.wait()
            closed = anyio.Event()
            await anyio.sleep(0.01)  # for the packet that says so
    assert usage.requests == 3


async def test_closing_ends_streams_that_are_open() -> None:
    async with counting() as answering:
        found = Transport(answering.url)
        await found.__aenter__()
        async with found.stream("/go", {}, usage=Usage()) as stream:
            await found.__aexit__()
            with suppress(ResponseError):
                assert [event async for event in stream] == [{"a": 1}]
        await answering.only(0)


# Garbage.


async def test_requests_leave_nothing_to_the_garbage_collector() -> None:
    """No object of the library's, nor of those below it, refers to itself: only asyncio's transports of sockets do."""
    stream = answering(200, b'data: {"a": 1}\n\n' * 3, STREAM)
    async with server(answering(200, b"[1]")) as whole, server(stream) as streaming:  # noqa: SIM117
        async with Transport(whole) as one, Transport(streaming) as other:
            for run in range(2):
                gc.collect()
                gc.set_debug(gc.DEBUG_SAVEALL if run else 0)  # the first prepares what is made once
                try:
                    for _ in range(5):
                        assert await one.post("/go", {"prompt": "hello"}, usage=Usage()) == [1]
                        assert await events_of(other) == [{"a": 1}] * 3
                        await anyio.wait_all_tasks_blocked()
                    gc.collect()
                finally:
                    gc.set_debug(0)
                    found = {type(item).__module__.partition(".")[0] for item in gc.garbage}
                    gc.garbage.clear()
            assert "asyncio" in found  # something was collected
            assert not found & {"aiohttp", "anyio", "cosd_providers", "h11", "httpcore", "httpx"}
