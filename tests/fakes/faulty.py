"""A server on loopback that misbehaves on cue, in front of a stand-in for a real one.

It writes HTTP by hand, so that it can do what no library lets a server do. `cue` says which of the next requests are
answered by which fault; every other one is answered as the stand-in would.
"""

from __future__ import annotations

import asyncio
import json
import math
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


# What a server can do wrong.

Change: TypeAlias = Callable[[list[Any]], list[Any]]
"""Of what is said: the objects of a stream's events, or the one of an answer."""


def edited(*changes: Change, how: str = "end") -> Fault:
    """Changes to the answers of the stand-in."""

    async def fault(exchange: Exchange) -> None:
        said = exchange.said
        for change in changes:
            said = change(said)
        await exchange.send(exchange.dumped(said), how=how)

    return fault


def walked(value: Any, change: Callable[[str, Any], Any]) -> Any:
    """JSON with every value of an object changed, by its name; outer ones first."""
    if isinstance(value, dict):
        return {key: walked(change(key, inner), change) for key, inner in value.items()}
    return [walked(inner, change) for inner in value] if isinstance(value, list) else value


def values(change: Callable[[str, Any], Any]) -> Change:
    """Changes the values of all objects, by their names."""
    return lambda said: [walked(one, change) for one in said]


def noted(text: str) -> Change:
    """With a field in each object that nobody reads."""

    def add(one: Any) -> Any:
        if isinstance(one, list):
            return [add(inner) for inner in one]
        return {**one, "note": text} if isinstance(one, dict) else one

    return add


_LETTERS = noted("é一😀" * 4)  # of several bytes each


def cut(where: Literal["start", "character", "event", "between"], how: str = "lost", *, share: float = 0.5) -> Fault:
    """A part of the answer: the head, or up to the middle of a character or of an event (or object), or to its end."""

    async def fault(exchange: Exchange) -> None:
        parts = exchange.dumped(_LETTERS(exchange.said)) or [b""]
        at = math.ceil((len(parts) - 1) * share)
        inside = parts[at].find("😀".encode()) + 2 if "😀".encode() in parts[at] else 1
        size = {"start": 0, "character": inside, "event": len(parts[at]) // 2, "between": len(parts[at])}[where]
        await exchange.send([*parts[:at], parts[at][:size]] if size else [], how=how)

    return fault


def recut(size: int | None) -> Fault:
    """The same bytes in pieces of another size; None for one."""

    async def fault(exchange: Exchange) -> None:
        body = b"".join(exchange.dumped(_LETTERS(exchange.said)))
        pieces = [body] if size is None else [body[at : at + size] for at in range(0, len(body), size)]
        await exchange.send(pieces)

    return fault


def page() -> Fault:
    """A web page, with success."""

    async def fault(exchange: Exchange) -> None:
        body = b"<!doctype html><title>Welcome</title>"
        await exchange.head(200, "text/html; charset=utf-8", f"content-length: {len(body)}")
        await exchange.stream.send(body)

    return fault


def refuses(status: int, body: object = None, *headers: str) -> Fault:
    """An HTTP error."""

    async def fault(exchange: Exchange) -> None:
        content = json.dumps(body).encode() if body is not None else b""
        await exchange.head(status, "application/json", f"content-length: {len(content)}", *headers)
        await exchange.stream.send(content)

    return fault


def redirects(url: str) -> Fault:
    """The same path of another server."""

    async def fault(exchange: Exchange) -> None:
        await exchange.head(307, "text/plain", f"location: {url}{exchange.path}", "content-length: 0")

    return fault


def hangs() -> Fault:
    """No answer, for ever."""
    return Exchange.wait_for_the_end


def hangs_up(*, reset: bool = False) -> Fault:
    """No answer, and no connection."""

    async def fault(exchange: Exchange) -> None:
        await exchange.hang_up(reset=reset)

    return fault


def endless(piece: bytes, kind: str | None = None) -> Fault:
    """A body that never ends, as fast as it is read."""

    async def fault(exchange: Exchange) -> None:
        own = "text/event-stream" if exchange.events else "application/json"
        await exchange.head(200, kind or own, "connection: close")
        while True:
            await exchange.stream.send(piece)

    return fault


def dawdles(piece: bytes) -> Fault:
    """A body that never ends, a little at a time."""

    async def fault(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream" if exchange.events else "application/json", "connection: close")
        while True:
            await exchange.stream.send(piece)
            await pause(0.01)

    return fault


def misjudged(difference: int) -> Fault:
    """A `content-length` that is wrong by so many bytes, in one packet with the body."""

    async def fault(exchange: Exchange) -> None:
        body = b"".join(exchange.dumped(exchange.said))
        kind = exchange.sane.headers.get("content-type", "application/json")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body) + difference}\r\n\r\n"
        await exchange.stream.send(head.encode() + body)
        await exchange.hang_up()

    return fault
