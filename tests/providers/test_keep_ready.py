"""A connection opened before it is needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import SocketStream

from cosd_providers import ConnectError, ServerError, connect, detection
from cosd_providers import engine as adapters
from cosd_providers.contract import Alive, Provider, Ready
from cosd_providers.detection import DetectedProvider
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.engines.ollama import Ollama
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.sglang import Sglang
from cosd_providers.engines.tgi import Tgi
from cosd_providers.engines.vllm import Vllm
from cosd_providers.testing import ScriptedProvider

ADAPTERS = (LlamaCpp, Vllm, Tgi, Sglang, Ollama, OpenAICompatible)


@dataclass
class Server:
    """Answers OK to everything, and records the connection of each request."""

    url: str = ""
    status: str = "200 OK"
    connections: int = 0
    asked: list[tuple[int, str]] = field(default_factory=list)

    async def handle(self, stream: SocketStream) -> None:
        self.connections += 1
        number = self.connections
        async with stream:
            while True:
                try:
                    head = await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                self.asked.append((number, head.split(b" HTTP")[0].decode()))
                await stream.send(f"HTTP/1.1 {self.status}\r\ncontent-length: 2\r\n\r\n{{}}".encode())


@asynccontextmanager
async def served(status: str = "200 OK") -> AsyncGenerator[Server]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        server = Server(f"http://127.0.0.1:{port}", status)
        group.start_soon(listener.serve, server.handle)
        yield server
        group.cancel_scope.cancel()
    for _ in range(3):  # sockets are closed in the loop's next turns
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server is far away."""
    monkeypatch.setattr(adapters, "_NEAR_SECONDS", 0.0)


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("kind", ADAPTERS)
async def test_the_next_request_finds_a_connection(kind: type) -> None:
    async with served() as server, kind(server.url) as provider:
        await provider.keep_ready()
        if kind is OpenAICompatible:  # hosted ones count every request: nothing is sent
            assert server.asked == []
            return
        assert len(server.asked) == 1
        assert server.asked[0][1].startswith("GET /")
        await provider._transport.get("/next")
        await provider.keep_ready()
        assert [number for number, _ in server.asked] == [1, 1, 1]


@pytest.mark.usefixtures("far")
async def test_a_detected_provider_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "detect", _llama_cpp)
    monkeypatch.setattr(LlamaCpp, "describe", _described)
    async with served() as server, connect(server.url) as provider:
        assert isinstance(provider, DetectedProvider)
        assert await provider.keep_ready() is None
        assert server.asked == []  # the engine is not detected yet
        await provider.adapter()
        assert await provider.keep_ready()
        assert server.asked == [(1, "GET /health")]


async def _llama_cpp(transport: object) -> str:
    return "llama.cpp"


async def _described(provider: LlamaCpp) -> None:
    """Stands for an adapter that finds all of its routes."""


async def test_a_server_that_is_near_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_NEAR_SECONDS", 60.0)
    async with served() as server, LlamaCpp(server.url) as provider:
        assert [await provider.keep_ready() for _ in range(3)] == [False] * 3
        assert server.asked == [(1, "GET /health")]


@pytest.mark.usefixtures("far")
async def test_it_never_fails() -> None:
    async with served("503 Service Unavailable") as server, LlamaCpp(server.url) as provider:
        await provider.keep_ready()
        assert len(server.asked) == 1  # without a retry
    async with LlamaCpp(server.url) as provider:  # the server is gone
        await provider.keep_ready()


@pytest.mark.usefixtures("far")
async def test_a_users_client_is_left_alone() -> None:
    async with served() as server, httpx.AsyncClient() as client, LlamaCpp(server.url, http_client=client) as provider:
        await provider.keep_ready()
        assert server.asked == []


@pytest.mark.parametrize("kind", ADAPTERS)
def test_every_adapter_can(kind: type) -> None:
    one = kind("http://a")
    assert isinstance(one, Ready) and isinstance(one, Provider)


def test_not_every_provider_can() -> None:
    assert not isinstance(ScriptedProvider.from_texts({}), Ready)


@pytest.mark.parametrize("kind", ADAPTERS)
async def test_a_server_that_answers_is_alive(kind: type) -> None:
    async with served() as server, kind(server.url) as provider:
        await provider.check_alive()
        assert len(server.asked) == 1
    async with served("404 Not Found") as server, kind(server.url) as provider:
        await provider.check_alive()  # it answers


@pytest.mark.parametrize("kind", ADAPTERS)
async def test_a_server_that_is_loading_or_gone_is_not(kind: type) -> None:
    async with served("503 Service Unavailable") as server, kind(server.url) as provider:
        with pytest.raises(ServerError):
            await provider.check_alive()
    async with kind(server.url) as provider:
        with pytest.raises(ConnectError):
            await provider.check_alive()


async def test_a_server_is_recognized_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "detect", _llama_cpp)
    monkeypatch.setattr(LlamaCpp, "describe", _described)
    async with served() as server, connect(server.url) as provider:
        assert isinstance(provider, Alive)
        await provider.check_alive()
        assert server.asked == [(1, "GET /health")]
