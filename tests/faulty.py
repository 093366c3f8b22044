"""A server on loopback that misbehaves on cue, in front of a stand-in for a real one.

It writes HTTP by hand, so that it can do what no library lets a server do. `cue` says which of the next requests are
answered by which fault (`faults.py`); every other one is answered as the stand-in would.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import httpx
from anyio import sleep as pause  # a test may make the pauses between attempts fast: not those of this server
from anyio.abc import SocketAttribute, SocketStream

__all__ = ["Exchange", "Fault", "FaultyServer", "Role", "nothing_left", "serve"]

Role: TypeAlias = Literal["draft", "ask", "learn"]
"""What a request is for: a draft, an assistant's answers, or to learn what the server is."""

_GENERATING = {"/completion", "/v1/completions", "/v1/chat/completions", "/generate"}
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@dataclass
class Exchange:
    """One request, and what a sane server answers.

    Attributes:
        stream: the connection.
        path: asked for.
        body: of the request.
        sane: the stand-in's answer.
        origin: the server's own URL.
    """

    stream: SocketStream
    path: str
    body: Any
    sane: httpx.Response
    origin: str

    @property
    def role(self) -> Role:
        """What it is for."""
        if self.path == "/generate_stream":  # TGI answers single questions by streams too
            return "ask" if self.body["parameters"]["top_n_tokens"] > 1 else "draft"
        if self.body and self.body.get("stream"):
            return "draft"
        return "ask" if self.path in _GENERATING else "learn"

    @property
    def events(self) -> bool:
        """Whether the answer is a stream."""
        return str(self.sane.headers.get("content-type")).startswith("text/event-stream")

    @property
    def said(self) -> list[Any]:
        """What is said: the objects of the events, or the one of the answer. `"[DONE]"` is left as it is."""
        if not self.events:
            return [json.loads(self.sane.content)] if self.sane.content else []
        lines = [line[5:].strip() for line in self.sane.text.splitlines() if line.startswith("data:")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def dumped(self, said: Sequence[Any]) -> list[bytes]:
        """What is said as bytes, characters as they are; each event by itself."""
        texts = [one if one == "[DONE]" else json.dumps(one, ensure_ascii=False) for one in said]
        return [f"data: {text}\n\n".encode() for text in texts] if self.events else [text.encode() for text in texts]

    async def send(self, parts: Sequence[bytes], *, status: int | None = None, how: str = "end") -> None:
        """An answer: in one piece, or each part of a stream as it is.

        Args:
            parts: of the body.
            status: instead of the sane one.
            how: `end` as HTTP has it, `lost` without, `reset` with a packet that says so, or `hang` for ever.
        """
        status = self.sane.status_code if status is None else status
        kind = self.sane.headers.get("content-type", "application/json")
        if self.events:
            await self.head(status, kind, "transfer-encoding: chunked")
            for part in parts:
                await self.stream.send(b"%x\r\n%s\r\n" % (len(part), part))
            closing = b"0\r\n\r\n"
        else:
            body = b"".join(parts)
            more = 0 if how == "end" else 1
            await self.head(status, kind, f"content-length: {len(body) + more}")
            await self.stream.send(body)
            closing = b""
        if how == "end":
            await self.stream.send(closing)
        elif how == "hang":
            await self.wait_for_the_end()
        else:
            await self.hang_up(reset=how == "reset")

    async def head(self, status: int, kind: str, *headers: str) -> None:
        """The start of an answer."""
        lines = [f"HTTP/1.1 {status} Whatever", f"content-type: {kind}", *headers, "", ""]
        await self.stream.send("\r\n".join(lines).encode())

    async def hang_up(self, *, reset: bool = False) -> None:
        """Closes the connection."""
        if reset:
            raw = self.stream.extra(SocketAttribute.raw_socket)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.stream.aclose()

    async def wait_for_the_end(self) -> None:
        """Until the client leaves."""
        while True:
            await self.stream.receive()


Fault: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""Answers a request in its own way."""


async def sane(exchange: Exchange) -> None:
    """No fault."""
    await exchange.send(exchange.dumped(exchange.said))


@dataclass
class Cue:
    """A fault, and which requests it strikes: those for which `at` is true, so many times."""

    fault: Fault
    at: Callable[[Exchange], bool]
    times: float


@dataclass
class FaultyServer:
    """In front of a stand-in's `handle`.

    Attributes:
        url: of this server.
        requests: path, headers and body of each request, in order.
        struck: how often a fault was played.
        connections: that are open.
        cues: the first that applies is played.
    """

    handle: Callable[[httpx.Request], httpx.Response]
    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    struck: int = 0
    connections: int = 0
    cues: list[Cue] = field(default_factory=list)

    def cue(self, fault: Fault, at: Role | Callable[[Exchange], bool], times: float = float("inf")) -> None:
        """Plays a fault for requests of a kind, so many times."""
        chosen = at if callable(at) else (lambda exchange: exchange.role == at)
        self.cues.append(Cue(fault, chosen, times))

    async def serve(self, stream: SocketStream) -> None:
        """One connection, for as many requests as come over it."""
        self.connections += 1
        try:
            async with stream:
                with suppress(*_GONE):
                    await self._requests(stream)
        finally:
            self.connections -= 1

    async def _requests(self, stream: SocketStream) -> None:
        waiting = b""
        while True:
            while b"\r\n\r\n" not in waiting:
                waiting += await stream.receive()
            head, _, waiting = waiting.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            size = int(headers.get("content-length", "0"))
            while len(waiting) < size:
                waiting += await stream.receive()
            content, waiting = waiting[:size], waiting[size:]
            body = json.loads(content) if content else None
            self.requests.append((target, headers, body))
            sane = self.handle(httpx.Request(method, self.url + target, content=content))
            exchange = Exchange(stream, target.partition("?")[0], body, sane, self.url)
            await self._fault(exchange)(exchange)
            if headers.get("connection") == "close":
                return

    def _fault(self, exchange: Exchange) -> Fault:
        for cue in self.cues:
            if cue.times > 0 and cue.at(exchange):
                cue.times -= 1
                self.struck += 1
                return cue.fault
        return sane


@asynccontextmanager
async def serve(*handles: Callable[[httpx.Request], httpx.Response]) -> AsyncGenerator[list[FaultyServer]]:
    """A server on loopback for each stand-in; at the end nobody may be connected to it."""
    servers = [FaultyServer(handle) for handle in handles]
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        for server in servers:
            [listener] = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners
            await stack.enter_async_context(listener)
            server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            group.start_soon(listener.serve, server.serve)
        try:
            yield servers
            await _soon(lambda: not any(server.connections for server in servers), "a connection is left open")
        finally:
            group.cancel_scope.cancel()


@asynccontextmanager
async def nothing_left() -> AsyncGenerator[None]:
    """No task and no socket that was not there before."""
    tasks, sockets = asyncio.all_tasks(), _sockets()
    yield
    await _soon(lambda: asyncio.all_tasks() <= tasks, "a task is left")
    await _soon(lambda: _sockets() <= sockets, "a socket is left")


async def _soon(true: Callable[[], bool], words: str) -> None:
    with anyio.move_on_after(5):
        while not true():  # noqa: ASYNC110 - nothing tells when a socket is closed
            await pause(0.002)
    assert true(), words


def _sockets() -> int:
    """How many this process has open, where that can be seen."""
    folder = Path("/dev/fd")
    return sum(_is_socket(int(entry.name)) for entry in folder.iterdir()) if folder.exists() else 0


def _is_socket(number: int) -> bool:
    with suppress(OSError):  # the folder's own is closed by now
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    return False
