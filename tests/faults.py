"""What a server can do wrong; see `faulty`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from anyio import sleep as pause  # a test may make the pauses between attempts fast: not these

from faulty import Exchange, Fault

__all__ = [
    "cut",
    "dawdles",
    "edited",
    "endless",
    "hangs",
    "hangs_up",
    "misjudged",
    "noted",
    "page",
    "recut",
    "redirects",
    "refuses",
    "values",
]

Change: TypeAlias = Callable[[list[Any]], list[Any]]
"""Of what is said: the objects of a stream's events, or the one of an answer."""


def edited(*changes: Change, how: str = "end") -> Fault:
    """What the stand-in says, changed."""

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
