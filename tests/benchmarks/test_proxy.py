"""The delaying proxy in front of servers of our own: what is held back, in which order, and what else travels."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from benchmarks.proxy import ProxyError, delayed

ROUND_TRIP = 0.1

Handler = Callable[[SocketStream], Awaitable[None]]


@asynccontextmanager
async def served(handle: Handler) -> AsyncIterator[str]:
    """A TCP server on loopback."""

    async def closing(stream: SocketStream) -> None:
        async with stream:
            await handle(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, closing)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


async def connected(url: str) -> SocketStream:
    host, _, port = url.removeprefix("http://").partition(":")
    return await anyio.connect_tcp(host, int(port))


async def echo(stream: SocketStream) -> None:
    async for data in stream:
        await stream.send(data)


async def everything(stream: SocketStream) -> bytes:
    found = bytearray()
    with suppress(anyio.EndOfStream):
        while True:
            found += await stream.receive()
    return bytes(found)


async def test_an_exchange_takes_a_round_trip_and_the_first_one_a_handshake_more() -> None:
    async with served(echo) as url, delayed(url, ROUND_TRIP) as far:
        began = time.monotonic()
        async with await connected(far) as stream:
            for exchanges in range(1, 4):
                await stream.send(b"x")
                assert await stream.receive() == b"x"
                assert time.monotonic() - began >= (1 + exchanges) * ROUND_TRIP


async def test_half_of_it_is_on_the_way_there() -> None:
    arrived = list[float]()

    async def note(stream: SocketStream) -> None:
        async for data in stream:
            arrived.append(time.monotonic())
            await stream.send(data)

    async with served(note) as url, delayed(url, ROUND_TRIP) as far:
        began = time.monotonic()
        async with await connected(far) as stream:
            await stream.send(b"x")
            await stream.receive()
            assert arrived[0] - began >= 1.5 * ROUND_TRIP
            assert time.monotonic() - arrived[0] >= ROUND_TRIP / 2
            sent = time.monotonic()
            await stream.send(b"x")
            await stream.receive()
            assert arrived[1] - sent >= ROUND_TRIP / 2
            assert time.monotonic() - arrived[1] >= ROUND_TRIP / 2


async def test_a_server_that_speaks_first_is_heard_after_a_handshake_and_half_a_round_trip() -> None:
    async def greet(stream: SocketStream) -> None:
        await stream.send(b"hello")
        await everything(stream)

    async with served(greet) as url, delayed(url, ROUND_TRIP) as far:
        began = time.monotonic()
        async with await connected(far) as stream:
            assert await stream.receive() == b"hello"
            assert time.monotonic() - began >= 1.5 * ROUND_TRIP


@pytest.mark.parametrize("round_trip", [0, 0.001, ROUND_TRIP])
async def test_bytes_stay_in_order_and_none_is_lost(round_trip: float) -> None:
    text = b"".join(b"%d " % number for number in range(100_000))  # far more than one chunk

    async with served(echo) as url, delayed(url, round_trip) as far, await connected(far) as stream:

        async def send() -> None:
            for start in range(0, len(text), 9999):
                await stream.send(text[start : start + 9999])
            await stream.send_eof()

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            assert await everything(stream) == text


async def test_chunks_do_not_wait_for_each_other() -> None:
    """Delayed, not throttled: what is sent together is back together, after one round trip and not after many.

    Shown without a clock: the server answers nothing until all of twenty chunks are there, which a proxy that lets
    one chunk travel at a time would never bring about while the first is unanswered.
    """
    chunks = 20

    async def answer_at_the_end(stream: SocketStream) -> None:
        got = 0
        while got < chunks:
            got += len(await stream.receive())
        await stream.send(b"all")

    async with served(answer_at_the_end) as url, delayed(url, ROUND_TRIP) as far, await connected(far) as stream:
        for _ in range(chunks):
            await stream.send(b"x")
        assert await stream.receive() == b"all"


async def test_a_half_close_travels_and_leaves_the_other_direction_open() -> None:
    ended = list[float]()

    async def at_the_end(stream: SocketStream) -> None:
        asked = await everything(stream)
        ended.append(time.monotonic())
        await stream.send(asked.upper())

    async with served(at_the_end) as url, delayed(url, ROUND_TRIP) as far, await connected(far) as stream:
        await stream.send(b"question")
        sent = time.monotonic()
        await stream.send_eof()
        assert await everything(stream) == b"QUESTION"
        assert ended[0] - sent >= ROUND_TRIP / 2
        assert time.monotonic() - ended[0] >= ROUND_TRIP / 2


async def test_a_server_that_streams_hears_of_a_cancellation() -> None:
    left, heard = list[float](), anyio.Event()

    async def stream_on(stream: SocketStream) -> None:
        await stream.receive()
        try:
            while True:
                await stream.send(b"token ")
                await anyio.lowlevel.checkpoint()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            left.append(time.monotonic())
            heard.set()

    async with served(stream_on) as url, delayed(url, ROUND_TRIP) as far:
        async with await connected(far) as stream:
            await stream.send(b"go")
            await stream.receive()
            gone = time.monotonic()
        await heard.wait()
        assert left[0] - gone >= ROUND_TRIP / 2


async def test_a_server_that_waits_hears_of_a_cancellation() -> None:
    heard = anyio.Event()

    async def wait(stream: SocketStream) -> None:
        await everything(stream)
        heard.set()

    async with served(wait) as url, delayed(url, ROUND_TRIP) as far:
        async with await connected(far) as stream:
            await stream.send(b"go")
        await heard.wait()


async def test_a_client_hears_that_the_server_hung_up() -> None:
    async def hang_up(stream: SocketStream) -> None:
        await stream.receive()
        await stream.send(b"bye")

    async with served(hang_up) as url, delayed(url, ROUND_TRIP) as far, await connected(far) as stream:
        await stream.send(b"x")
        assert await everything(stream) == b"bye"


async def test_both_may_be_gone_before_either_hears_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def hang_up(stream: SocketStream) -> None:
        await stream.send(b"bye")

    async with served(hang_up) as url, delayed(url, ROUND_TRIP) as far:
        async with await connected(far) as stream:
            assert await everything(stream) == b"bye"
        async with await connected(far) as stream:
            await stream.send(b"x")
        async with await connected(far) as stream:  # later, so that the ends have met
            assert await everything(stream) == b"bye"
    assert not capfd.readouterr().err


async def test_many_connections_are_independent() -> None:
    async def one(number: int, far: str) -> None:
        async with await connected(far) as stream:
            for step in range(5):
                word = b"%d.%d" % (number, step)
                await stream.send(word)
                assert await stream.receive() == word

    async with served(echo) as url, delayed(url, 0.001) as far, anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number, far)


async def test_nobody_behind_it_ends_the_connection() -> None:
    async with served(echo) as url:
        pass  # and now it is gone
    async with delayed(url, ROUND_TRIP) as far, await connected(far) as stream:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()


async def test_the_path_of_the_url_is_kept() -> None:
    async with delayed("http://127.0.0.1:9/v1", 0) as far:
        assert far.startswith("http://127.0.0.1:")
        assert far.endswith("/v1")


async def test_it_is_gone_after_the_block() -> None:
    async with served(echo) as url:
        async with delayed(url, 0) as far:
            pass
        with pytest.raises(OSError, match=r".+"):
            await connected(far)


async def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="0 seconds or more"):
        async with delayed("http://127.0.0.1:9", -1):
            pass


async def test_a_proxy_that_does_not_start_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.proxy.__file__", "/nowhere/proxy.py")
    with pytest.raises(ProxyError, match="did not start"):
        async with delayed("http://127.0.0.1:9", 0):
            pass
    assert "nowhere" in capfd.readouterr().err
