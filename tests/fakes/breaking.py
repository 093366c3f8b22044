"""Streams that break, in front of a stand-in for a server: for what has to be resumed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

import anyio
import httpx
import pytest
from hypothesis import strategies as st

Kind = Literal["ends", "breaks", "stops", "says", "busy", "gone"]
KINDS: tuple[Kind, ...] = ("ends", "breaks", "stops", "says", "busy", "gone")


@dataclass(frozen=True)
class Break:
    """What happens to one stream.

    Attributes:
        kind: the answer ends there, the connection breaks, nothing more comes in time, an event says that the server
            is overloaded; or instead of an answer it is refused, or there is no connection.
        at: after how many bytes of the answer; more than there are is none at all.
    """

    kind: Kind
    at: int = 0


class Breaking:
    """A server whose next streams break, and whose later ones do not.

    Attributes:
        breaks: what is still to happen.
        happened: how many streams were broken before their end.
    """

    def __init__(self, handle: Callable[[httpx.Request], httpx.Response], *breaks: Break) -> None:
        self.breaks = [*breaks]
        self.happened = 0
        self._handle = handle

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """One request, answered or broken."""
        streams = b'"stream":true' in request.content or request.url.path == "/generate_stream"
        if not (self.breaks and streams):
            return self._handle(request)
        fault = self.breaks.pop(0)
        if fault.kind == "busy":
            self.happened += 1
            return httpx.Response(503, json={"error": {"message": "busy"}})
        if fault.kind == "gone":
            self.happened += 1
            raise httpx.ConnectError("gone")
        whole = self._handle(request)
        kind = whole.headers["content-type"]
        if fault.at >= len(whole.content) or not ("event-stream" in kind or "ndjson" in kind):
            return whole
        self.happened += 1
        content = self._broken(whole.content[: fault.at], fault.kind, lines="ndjson" in kind)
        return httpx.Response(200, headers=whole.headers, content=content)

    async def _broken(self, content: bytes, kind: Kind, *, lines: bool) -> AsyncIterator[bytes]:
        if kind == "says":
            between = b"\n" if lines else b"\n\n"
            event = json.dumps({"error": "too busy", "error_type": "overloaded"}).encode()
            yield content[: content.rfind(between) + len(between) if between in content else 0]
            yield (b"" if lines else b"data: ") + event + between
            return
        yield content
        if kind == "breaks":
            raise httpx.ReadError("reset")
        if kind == "stops":
            raise httpx.ReadTimeout("")


class Repeating:
    """A proxy that sends some events of each stream twice.

    Attributes:
        happened: how many streams had enough events.
    """

    def __init__(self, handle: Callable[[httpx.Request], httpx.Response], at: int, size: int = 1) -> None:
        """After the first `at` events, the last `size` of them come again."""
        self.happened = 0
        self._handle = handle
        self._at = at
        self._size = size

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """One request, answered."""
        whole = self._handle(request)
        kind = whole.headers["content-type"]
        if not ("event-stream" in kind or "ndjson" in kind):
            return whole
        between = b"\n" if "ndjson" in kind else b"\n\n"
        events = whole.content.split(between)
        self.happened += len(events) > self._at
        again = events[max(self._at - self._size, 0) : self._at]
        return httpx.Response(
            200, headers=whole.headers, content=between.join([*events[: self._at], *again, *events[self._at :]])
        )


def breaks(most: int) -> st.SearchStrategy[list[Break]]:
    """Up to so many; no two time-outs, of which the second is one too many."""
    at = st.integers(0, 3000)
    one = st.builds(Break, st.sampled_from(KINDS), at)
    later = st.builds(Break, st.sampled_from([kind for kind in KINDS if kind != "stops"]), at)
    return st.builds(lambda first, more: [first, *more], one, st.lists(later, max_size=most - 1))


def waiting(patch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made from now on; none takes time."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    patch.setattr(anyio, "sleep", sleep)
    return pauses
