"""Hostile requests to `cosd serve`, each sent over a socket of its own, and the allowed statuses of the answers.

No such request is both valid and authorised, so the gateway must refuse each of them with an error message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import SocketStream

from benchmarks.attacked import KEY

__all__ = ["HOSTILE", "STALLED", "Hostile", "Met"]

CHAT = "/v1/chat/completions"
_SECONDS = 90.0
_CLOSED = "closed"
"""The status recorded if the connection was closed without an answer."""


@dataclass
class Met:
    """Answers to one kind of hostile request.

    Attributes:
        statuses: number of answers by status.
        longest: seconds until the slowest answer.
        wordless: number of refusals without an error message.
    """

    statuses: dict[str, int] = field(default_factory=dict[str, int])
    longest: float = 0.0
    wordless: int = 0


@dataclass(frozen=True)
class Hostile:
    """One kind of hostile request.

    Attributes:
        name: the name in the table.
        allowed: the allowed statuses; there are several if timing decides which side gives up first.
        parts: the bytes of the request, which are sent part by part.
        shut: whether to close the sending side after the last part.
    """

    name: str
    allowed: Sequence[str]
    parts: Callable[[], Sequence[bytes]]
    shut: bool = False

    async def send(self, port: int, met: Met) -> None:
        """Send the request, and record the answer."""
        began = time.perf_counter()
        status, words = "no answer", b""
        with anyio.move_on_after(_SECONDS):
            status, words = await _ask(port, self.parts(), shut=self.shut)
        met.longest = max(met.longest, time.perf_counter() - began)
        met.statuses[status] = met.statuses.get(status, 0) + 1
        met.wordless += status.isdigit() and not _in_words(words)


async def _ask(port: int, parts: Sequence[bytes], *, shut: bool) -> tuple[str, bytes]:
    try:
        async with await anyio.connect_tcp("127.0.0.1", port) as stream, anyio.create_task_group() as group:
            group.start_soon(_send, stream, parts, shut)
            found = await _received(stream)
            group.cancel_scope.cancel()
    except OSError:
        return _CLOSED, b""
    head, _, body = found.partition(b"\r\n\r\n")
    return (head.split(b" ", 2)[1].decode() if head.startswith(b"HTTP/1.1 ") else _CLOSED), body


async def _send(stream: SocketStream, parts: Sequence[bytes], shut: bool) -> None:
    try:
        for part in parts:
            await stream.send(part)
        if shut:
            await stream.send_eof()
    except (OSError, anyio.BrokenResourceError):  # the server has already answered and closed the connection
        pass


async def _received(stream: SocketStream) -> bytes:
    found = b""
    try:
        while not _whole(found):
            found += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        pass
    return found


def _whole(found: bytes) -> bool:
    head, end, body = found.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end) and bool(lengths) and len(body) >= int(lengths[0])


def _in_words(body: bytes) -> bool:
    try:
        return bool(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return bool(body) and b"<" not in body  # the HTTP server itself refuses in plain text


def _request(
    body: bytes, *more: str, path: str = CHAT, key: str | None = f"Bearer {KEY}", length: int | None = None
) -> Sequence[bytes]:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", *more]
    lines += [f"authorization: {key}"] if key else []
    lines += [f"content-length: {len(body) if length is None else length}"] if length != -1 else []
    return ["\r\n".join([*lines, "", ""]).encode(), body] if body else ["\r\n".join([*lines, "", ""]).encode()]


def _chat(text: str = "Hello", **more: Any) -> bytes:
    message = {"role": "user", "content": text}
    return json.dumps({"model": "cosd", "messages": [message], "max_tokens": 8, **more}).encode()


def _kinds() -> Mapping[str, tuple[Sequence[str], Callable[[], Sequence[bytes]]]]:
    refused = ["400"]
    smuggled = _chat()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    plain: Mapping[str, tuple[Sequence[str], bytes]] = {
        "malformed JSON": (refused, b'{"model": "cosd", "messages": [}'),
        "invalid UTF-8": (refused, _chat().replace(b"Hello", b"\xff\xfe\x80")),
        "a lone surrogate": (refused, _chat("\ud800")),
        "50,000 brackets": (refused, b"[" * 50_000),
        "an integer of 5,000 digits": (refused, b'{"model": "cosd", "prompt": ' + b"9" * 5000 + b"}"),
        "a list for an object": (refused, b"[]"),
        "no body": (refused, b""),
        "10^9 tokens": (refused, _chat(max_tokens=10**9)),
    }
    found: dict[str, tuple[Sequence[str], Callable[[], Sequence[bytes]]]] = {
        name: (allowed, partial(_request, body)) for name, (allowed, body) in plain.items()
    }
    found |= {
        # A model's server may have to count the prompt's tokens, and that server may be down.
        "a prompt of 3.8 MB": ([*refused, "413", "502"], lambda: _request(_chat("a " * 1_900_000))),
        "a body of 10 MB": (["413"], lambda: _request(_chat("a " * 5_000_000))),
        "a body of 10 MB, in chunks": (
            ["413"],
            lambda: [
                *_request(b"", "transfer-encoding: chunked", length=-1),
                *[b"10000\r\n" + b" " * 0x10000 + b"\r\n"] * 160,
                b"0\r\n\r\n",
            ],
        ),
        "no key": (["401"], partial(_request, _chat(), key=None)),
        "a wrong key": (["401"], partial(_request, _chat(), key="Bearer another-key-of-20-letters")),
        "a key as Basic": (["401"], partial(_request, _chat(), key=f"Basic {KEY}")),
        "another content type": (
            ["415"],
            lambda: [one.replace(b"application/json", b"text/plain") for one in _request(_chat())],
        ),
        "a head of 300 KB": (["400", "431", _CLOSED], partial(_request, _chat(), "x-long: " + "a" * 300_000)),
        "length and chunks": (refused, partial(_request, chunked, "transfer-encoding: chunked")),
        "two lengths": (refused, partial(_request, smuggled, "content-length: 3")),
        "a bare CR in the head": (refused, partial(_request, smuggled, "x-one: a\rx-two: b")),
        "a path that climbs": (["404"], partial(_request, smuggled, path="/v1/../../etc/passwd")),
    }
    return found


HOSTILE = [
    *(Hostile(name, allowed, parts) for name, (allowed, parts) in _kinds().items()),
    Hostile("half-closed after a request", ["200", _CLOSED], partial(_request, _chat()), shut=True),
    Hostile("half-closed within a body", ["400", "408", _CLOSED], partial(_request, b"{", length=100), shut=True),
]
"""Requests that are answered immediately."""

STALLED = [Hostile("a stalled body", ["408"], partial(_request, b"{", length=100))]
"""Requests that are answered when they time out."""
