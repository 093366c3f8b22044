"""Client connections that are closed if the client sends no request or does not read its answer.

uvicorn never closes a connection on which no request arrives, and when its limit (`limit_concurrency`) is reached, it
refuses every client. In a test with 600 silent connections and a limit of 576, plain uvicorn served none of three other
requests within 42 seconds, and all 600 connections stayed open. With `ClientConnection`, all three requests were
served, and no silent connection stayed open.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import time
from contextlib import suppress
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

if sys.platform == "linux":
    from fcntl import ioctl

__all__ = ["ClientConnection"]

HEAD_SECONDS = 10.0
"""Time limit for the head of a request.

The time starts when the connection is opened; for later requests, it starts with their first byte.
"""

TAKING_SECONDS = 300.0
"""Time within which a client must read `_TAKEN_BYTES` of what waits for it, or all of it.

It is long because the operating system of a slow client requests data in large steps, which may be minutes apart.
"""

_TAKEN_BYTES = 65_536
_PIPELINED = 16  # maximum number of answers on a connection whose client has not read all earlier ones
_NEW_SECONDS = 1.0  # age from which a connection without a request counts as idle

_UNSENT = 0x5411  # SIOCOUTQ on Linux, which returns the number of bytes that the client has not acknowledged


class ClientConnection(H11Protocol):
    """A client's connection, which is closed if the client does not use it.

    It is closed if the head of a request does not arrive in time, or if the client reads too little of an answer for
    too long. If there are too many connections, an idle one is closed, or else the one whose answer has been unread
    longest. If a client sends requests without reading the answers, only the first few are answered.

    Args:
        most: maximum number of open connections.
    """

    def __init__(self, *args: Any, most: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = most
        self._free_since = time.monotonic()  # this clock has a finer resolution than uvloop's
        self._unread_since: float | None = None  # time since which the client has not read everything
        self._unread_answers = 0  # number of answers since that time
        self._head_timer: asyncio.TimerHandle | None = None
        self._taking_timer: asyncio.TimerHandle | None = None

    @property
    def _waits(self) -> bool:
        """True while no request is in progress."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request, despite uvicorn's type
        return cycle is None or cycle.response_complete

    @property
    def _free(self) -> bool:
        """True while no request is in progress and the client has received every answer."""
        return self._waits and not self._unsent()

    @property
    def _order(self) -> tuple[int, float]:
        """The order in which connections are closed if there are too many.

        Connections that are idle come first, because nothing is lost with them; then unread and new ones, by age; then
        answers in progress that are not read.
        """
        now = time.monotonic()
        if self._free:
            return int(now - self._free_since < _NEW_SECONDS), self._free_since
        return (1 if self._waits else 2 if self.flow.write_paused else 3), self._unread_since or now

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If there are now too many, close the least useful of the others."""
        super().connection_made(transport)
        if len(self.connections) > self._most:
            several = [one for one in self.connections if isinstance(one, ClientConnection)]
            last = min(several, key=lambda one: (2, math.inf) if one is self else one._order)
            self.connections.discard(last)  # so that the connection does not count while it is being closed
            last._hang_up()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of the connection."""
        self._cancel_head()
        self._cancel_taking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; run the timer for the request's head until the head is complete."""
        if self._free:
            self._cancel_taking()
            self._unread_since, self._unread_answers = None, 0
        super().data_received(data)
        if self._waits:
            self._await_head()
        else:
            self._cancel_head()

    def on_response_complete(self) -> None:
        """Start to wait for the next request, and for the client to read the rest of the answer."""
        self._free_since = time.monotonic()
        self._unread_answers += 1
        if self._unread_answers >= _PIPELINED:
            self.transport.close()  # after sending what has been written
        self._await_taking()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer for a client whose buffers are full."""
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        """Continue after the client has read from its full buffers."""
        self._cancel_taking()
        super().resume_writing()
        if self._waits:
            self._await_taking()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._hang_up)

    def _cancel_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_taking(self) -> None:
        left = self._unsent()
        if left and self._taking_timer is None:
            self._unread_since = self._unread_since or time.monotonic()
            self._taking_timer = self.loop.call_later(TAKING_SECONDS, self._check_taking, left)

    def _check_taking(self, left: int) -> None:
        self._taking_timer = None
        if not self._waits and not self.flow.write_paused:
            return  # the client keeps up with the answer in progress
        if self._unsent() > max(0, left - _TAKEN_BYTES):
            self._hang_up()
        else:
            self._await_taking()

    def _unsent(self) -> int:
        """Return the number of bytes that the client has not received.

        On Linux, this includes the bytes in the operating system's send buffer.
        """
        left = self.transport.get_write_buffer_size()
        found: socket.socket | None = self.transport.get_extra_info("socket")
        if left and sys.platform == "linux" and found is not None:
            with suppress(OSError, ValueError):  # raised if the socket has been closed
                left += int.from_bytes(ioctl(found.fileno(), _UNSENT, bytes(4)), sys.byteorder)
        return left

    def _cancel_taking(self) -> None:
        if self._taking_timer is not None:
            self._taking_timer.cancel()
            self._taking_timer = None

    def _hang_up(self) -> None:
        self.transport.abort()
