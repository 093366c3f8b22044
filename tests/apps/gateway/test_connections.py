"""Connections that send no request are closed, and give way to those that do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from cosd_api import Fusion
from cosd_api.apps.gateway.idle_connections import ClientConnection
from cosd_providers.testing import ScriptedProvider
from support.on_sockets import LOOPS, Served, port_of, post, served, unread
from support.visits import until
from toys.lima import assistant, draft

HEALTH = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@pytest.fixture(scope="module", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Each event loop, in turn."""
    return request.param


def fused(**options: Any) -> Fusion:
    return Fusion(draft=draft(**options), assistant=assistant())


@asynccontextmanager
async def connected(url: str, data: bytes) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which some bytes were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    writer.write(data)
    yield reader, writer
    writer.close()


def of(server: Served) -> list[ClientConnection]:
    """The connections of a gateway."""
    return [one for one in server.server_state.connections if isinstance(one, ClientConnection)]


async def answered(reader: asyncio.StreamReader) -> bool:
    return (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")


async def ended(reader: asyncio.StreamReader) -> bool:
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    return True


@pytest.mark.parametrize(
    ("first", "then"), [(b"", b""), (HEALTH, b""), (HEALTH + b"\r\n", HEALTH)], ids=["nothing", "half", "second"]
)
async def test_a_head_that_does_not_come_ends_the_connection(
    first: bytes, then: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosd_api.apps.gateway.idle_connections.HEAD_SECONDS", 0.2 if not then else 2.0)
    async with served(fused()) as (_, url), connected(url, first) as (reader, writer):
        if then:
            assert await answered(reader)
            monkeypatch.setattr("cosd_api.apps.gateway.idle_connections.HEAD_SECONDS", 0.1)
            writer.write(then)
        assert await ended(reader)


async def test_an_answer_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(fused(token_delay=0.05)) as (_, url), connected(url, post()) as (reader, _):
        await reader.readuntil(b"data: ")
        monkeypatch.setattr("cosd_api.apps.gateway.idle_connections.HEAD_SECONDS", 0.01)
        assert b"data: [DONE]" in await reader.readuntil(b"data: [DONE]")


async def test_the_connection_that_waits_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.apps.gateway.server._MORE_CONNECTIONS", 0)
    whole = HEALTH + b"\r\n"
    async with (
        served(fused(), concurrency=1) as (_, url),
        connected(url, whole) as (oldest, _),
        connected(url, b"") as (older, asking),
    ):
        assert await answered(oldest)
        asking.write(whole)
        assert await answered(older)
        async with connected(url, whole) as (reader, _):
            assert await answered(reader)
            assert await ended(oldest)
            asking.write(whole)
            assert await answered(older)


async def test_the_answer_that_is_unread_longest_gives_way_where_nobody_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cosd_api.apps.gateway.server._MORE_CONNECTIONS", 1)
    monkeypatch.setattr("cosd_api.apps.gateway.idle_connections._NEW_SECONDS", 1000)
    models = [ScriptedProvider.from_texts({"Q:": [" a"] * 2000}) for _ in range(2)]
    whole: dict[str, Any] = {"stream": False, "logprobs": 1, "max_tokens": 2000}
    async with (
        served(Fusion(draft=models[0], assistant=models[1]), concurrency=1) as (server, url),
        AsyncExitStack() as stack,
    ):
        for count in (1, 2):
            stack.enter_context(unread(url, **whole))
            await until(lambda count=count: server.server_state.total_requests == count)  # type: ignore[misc]
        older, newer = sorted(of(server), key=lambda one: one._unread_since or 0)
        reading = await stack.enter_async_context(connected(url, HEALTH + b"\r\n"))  # it is new, and then reads
        assert await answered(reading[0])
        assert len(of(server)) == 3
        assert await answered((await stack.enter_async_context(connected(url, HEALTH + b"\r\n")))[0])
        assert older not in of(server) and newer in of(server)
        newer._check_taking(newer._unsent() + 1)  # a little was read, and that is no reason to wait again
        await until(lambda: newer not in of(server))


async def test_requests_whose_answers_nobody_reads_are_answered_up_to_a_bound() -> None:
    one = HEALTH + b"x-request-id: " + b"a" * 128 + b"\r\n\r\n"
    async with served(fused()) as (server, url), connected(url, one * 400) as (reader, _):
        found = b""
        with suppress(ConnectionResetError):
            while part := await reader.read(65536):
                found += part
        assert 0 < found.count(b"HTTP/1.1 200") <= 16
        await until(lambda: not of(server))
        async with connected(url, b"") as (keeping, asking):  # whoever reads is not bounded
            for _ in range(40):
                asking.write(one)
                assert await answered(keeping)


@pytest.mark.extended
async def test_an_answer_on_its_way_does_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.apps.gateway.server._MORE_CONNECTIONS", 0)
    monkeypatch.setattr("cosd_api.apps.gateway.idle_connections._NEW_SECONDS", 0)
    models = [ScriptedProvider.from_texts({"Q:": [" a"] * 2000}) for _ in range(2)]
    async with (
        served(Fusion(draft=models[0], assistant=models[1]), concurrency=1) as (server, url),
        AsyncExitStack() as stack,
    ):
        with unread(url, stream=False, logprobs=1, max_tokens=2000) as client:
            await until(lambda: server.server_state.total_requests == 1)  # it is answered, and not taken
            idle = [await stack.enter_async_context(connected(url, b"")) for _ in range(3)]
            assert await ended(idle[0][0])
            client.setblocking(False)
            whole = b""
            with anyio.fail_after(60):
                while not whole.endswith(b"}}}"):
                    whole += (part := await asyncio.get_running_loop().sock_recv(client, 65536))
                    assert part
        head, _, data = whole.partition(b"\r\n\r\n")
        assert f"content-length: {len(data)}".encode() in head
