"""The gateway on uvicorn and a free port, and requests to it as bytes."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from cosd_api import Fusion
from cosd_api.apps.gateway import ClientKey, Gateway, GatewayLimits
from cosd_api.apps.gateway.server import GatewayServer, listening

KEY = "k" * 16

_UVLOOP = pytest.param(
    ("asyncio", {"use_uvloop": True}),
    marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop is for other systems"),
    id="uvloop",
)
LOOPS = ["asyncio", _UVLOOP]
"""Event loops on which connections must be guarded alike."""


class Served(GatewayServer):
    """Server that leaves the signals of the tests alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def served(fusion: Fusion, **limits: Any) -> AsyncGenerator[tuple[Served, str]]:
    """A gateway on a free port, and its URL."""
    wanted = GatewayLimits(**{"stop_seconds": 5, **limits})
    gateway = Gateway({"fused": fusion}, keys={KEY: ClientKey(name="a", env="A")}, limits=wanted)
    ready = anyio.Event()
    with listening("127.0.0.1", 0) as at:
        server = Served(gateway, ready.set)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [at])
            await ready.wait()
            yield server, f"http://127.0.0.1:{at.getsockname()[1]}/v1"
            server.should_exit = True


def port_of(url: str) -> int:
    return int(url.split(":")[2].removesuffix("/v1"))


def post(**body: Any) -> bytes:
    """A request for a stream, as bytes."""
    data = json.dumps({"model": "fused", "prompt": "Q:", "stream": True, **body}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: a", f"authorization: Bearer {KEY}", f"content-length: {len(data)}"]
    return "\r\n".join([*lines, "content-type: application/json", "", ""]).encode() + data


@contextmanager
def unread(url: str, **body: Any) -> Iterator[socket.socket]:
    """A client that has asked for a long stream, or for something else, and reads nothing."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port_of(url)))
        client.sendall(post(**{"max_tokens": 8000, **body}))
        yield client
