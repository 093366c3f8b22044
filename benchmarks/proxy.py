"""A delaying proxy in front of a local server, which simulates round trips of any length; see `delayed`.

The proxy is a process of its own, so its work does not count as the client's. It delays every chunk by half a round
trip in each direction, keeps the order, and does not limit the rate. A new connection costs one more round trip before
its first byte, as with TCP. The end of a stream and a broken connection are delayed like data, so a server learns of a
cancellation half a round trip later.

Limited bandwidth, TCP's slow start, packet loss and the round trips of TLS are not simulated.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio

__all__ = ["ProxyError", "delayed"]

START_SECONDS = 30.0


class ProxyError(RuntimeError):
    """The proxy could not be started."""


@asynccontextmanager
async def delayed(url: str, round_trip: float) -> AsyncIterator[str]:
    """Yield a URL that forwards to the server at `url` with a round trip of `round_trip` seconds, during the block.

    Args:
        url: URL of a server on this machine, for plain HTTP or any other protocol over TCP.
        round_trip: seconds, at least 0; with 0, only the proxy's own processing time is added.

    Raises:
        ProxyError: the proxy cannot be started.
    """
    if not round_trip >= 0:
        raise ValueError(f"a round trip takes 0 seconds or more, not {round_trip}")
    parts = urlsplit(url)
    # -P keeps Python from importing modules from this script's folder.
    command = [sys.executable, "-P", __file__, parts.hostname or "", str(parts.port or 80), repr(float(round_trip))]
    async with await anyio.open_process(command, stderr=None) as process:  # leaving the block closes its standard input
        assert process.stdout is not None
        try:
            with anyio.fail_after(START_SECONDS):
                port = int(await process.stdout.receive())
        except (anyio.EndOfStream, TimeoutError) as error:
            raise ProxyError(f"the proxy before {parts.netloc} did not start") from error
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()


class _End(asyncio.Protocol):
    """One end of a connection. The other end sends the data that this end receives, after a delay.

    Args:
        delay: delay in seconds.
        earliest: the event loop's time before which nothing is sent.
    """

    def __init__(self, delay: float, earliest: float) -> None:
        self.other: _End
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._earliest = earliest
        self._transport: asyncio.Transport | None = None
        # Data on the way to the other end, each item with its time of arrival: bytes, None for the end of the stream,
        # or False for a broken connection.
        self._line: deque[tuple[float, bytes | bool | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._told = self._heard = False  # whether the end of the stream was sent, and received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=sys.maxsize)
        self._transport = transport
        self.other.arrive()  # deliver data that arrived before this end was connected

    def data_received(self, data: bytes) -> None:
        self._depart(data)

    def eof_received(self) -> bool:
        self._heard = True
        self._depart(None)
        return not self._told  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:  # without an exception, both directions have ended, or the other end broke first
            self.broken()

    def broken(self) -> None:
        """Break the connection."""
        self._depart(False)

    def end(self) -> None:
        """Send the end of the stream."""
        assert self._transport is not None
        self._told = True
        try:
            self._transport.write_eof()
        except OSError:  # the connection is broken, which no read has noticed yet
            self._transport.abort()
        if self._heard:
            self._transport.close()

    def _depart(self, what: bytes | bool | None) -> None:
        # Chunks arrive in the order in which they were sent, so one timer is enough.
        self._line.append((max(self._loop.time(), self._earliest) + self._delay, what))
        if len(self._line) == 1:
            self._timer = self._loop.call_at(self._line[0][0], self.arrive)

    def arrive(self) -> None:
        """Pass all data that is due to the other end."""
        if self._timer is not None:
            self._timer.cancel()
        target, now = self.other._transport, self._loop.time()
        while self._line and self._line[0][0] <= now and target is not None:
            _, what = self._line.popleft()
            if target.is_closing():
                continue
            if what is None:
                self.other.end()
            elif what is False:
                target.abort()
            else:
                assert isinstance(what, bytes)
                target.write(what)
        if self._line and target is not None:
            self._timer = self._loop.call_at(self._line[0][0], self.arrive)


async def _relay(host: str, port: int, round_trip: float) -> None:
    """Listen on a free port, print it, and run forever."""
    loop = asyncio.get_running_loop()

    async def connect(far: _End) -> None:
        try:
            await loop.create_connection(lambda: far, host, port)
        except OSError:
            far.broken()

    def accept() -> _End:
        # The proxy accepts the client at once; over a real network, connecting would take one round trip.
        opened = loop.time() + round_trip
        near, far = _End(round_trip / 2, opened), _End(round_trip / 2, opened)
        near.other, far.other = far, near
        group.start_soon(connect, far)
        return near

    async with anyio.create_task_group() as group:
        server = await loop.create_server(accept, "127.0.0.1", 0, backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()  # the parent never writes, so read() returns when the parent has ended
    os._exit(0)


def main() -> None:
    """Relay to HOST PORT with a round trip of ROUND_TRIP seconds, until standard input closes."""
    host, port, round_trip = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent process
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    options = {"loop_factory": _precise_loop}
    anyio.run(_relay, host, int(port), float(round_trip), backend="asyncio", backend_options=options)


def _precise_loop() -> asyncio.AbstractEventLoop:
    # select() waits with microsecond precision; epoll, asyncio's default, rounds up to whole milliseconds.
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    main()
