"""A network between here and a server on this machine: `delayed` puts a round trip of any length before it.

The proxy is a process of its own, so that its work is not counted as the client's. It holds every chunk back for half a
round trip in each direction and keeps their order; it limits no rate, so a chunk never waits for another one. What a
connection costs beside that is what TCP makes it cost: its first byte leaves one round trip after it was asked for.
The end of a stream, and a connection that breaks, travel as bytes do: a server hears of a cancellation half a round
trip after it.

Not simulated: a limited bandwidth, TCP's slow start, losses, and the round trips of TLS.
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
    """The URL at which the server at `url` seems to be `round_trip` seconds away, while the block lasts.

    Args:
        url: of a server on this machine, plain HTTP or any other protocol over TCP.
        round_trip: seconds, at least 0; with 0 all that is added is the way through the proxy.

    Raises:
        ProxyError: it does not start.
    """
    if not round_trip >= 0:
        raise ValueError(f"a round trip takes 0 seconds or more, not {round_trip}")
    parts = urlsplit(url)
    # -P: the folder of this script, full of modules of ours, is no place to import from.
    command = [sys.executable, "-P", __file__, parts.hostname or "", str(parts.port or 80), repr(float(round_trip))]
    async with await anyio.open_process(command, stderr=None) as process:  # leaving it closes its standard input
        assert process.stdout is not None
        try:
            with anyio.fail_after(START_SECONDS):
                port = int(await process.stdout.receive())
        except (anyio.EndOfStream, TimeoutError) as error:
            raise ProxyError(f"the proxy before {parts.netloc} did not start") from error
        yield parts._replace(netloc=f"127.0.0.1:{port}").geturl()


class _End(asyncio.Protocol):
    """One end of a connection: what it receives is sent from the other end, later.

    Args:
        delay: seconds that everything is held back.
        earliest: the loop's time before which nothing leaves.
    """

    def __init__(self, delay: float, earliest: float) -> None:
        self.other: _End
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._earliest = earliest
        self._transport: asyncio.Transport | None = None
        # What is on its way to the other end: when it arrives, and bytes; None for the end, False for a broken line.
        self._line: deque[tuple[float, bytes | bool | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._told = self._heard = False  # whether the end of the stream was sent from here, and received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=sys.maxsize)
        self._transport = transport
        self.other.arrive()  # what came before this end was connected

    def data_received(self, data: bytes) -> None:
        self._depart(data)

    def eof_received(self) -> bool:
        self._heard = True
        self._depart(None)
        return not self._told  # the other direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:  # else both directions have ended, or the other end broke first
            self.broken()

    def broken(self) -> None:
        """The connection broke, or was never there."""
        self._depart(False)

    def end(self) -> None:
        """Sends the end of the stream from here."""
        assert self._transport is not None
        self._told = True
        try:
            self._transport.write_eof()
        except OSError:  # it has broken meanwhile, which is not seen where nothing is read any more
            self._transport.abort()
        if self._heard:
            self._transport.close()

    def _depart(self, what: bytes | bool | None) -> None:
        # One after another, so what departs later never arrives earlier, and one timer is enough.
        self._line.append((max(self._loop.time(), self._earliest) + self._delay, what))
        if len(self._line) == 1:
            self._timer = self._loop.call_at(self._line[0][0], self.arrive)

    def arrive(self) -> None:
        """Gives the other end everything whose time has come."""
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
    """Listens on a free port, says which, and never ends."""
    loop = asyncio.get_running_loop()

    async def connect(far: _End) -> None:
        try:
            await loop.create_connection(lambda: far, host, port)
        except OSError:
            far.broken()

    def accept() -> _End:
        # The client believes that it is connected; over a real line it would know that one round trip later.
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
    sys.stdin.buffer.read()  # nothing is ever written: what can be read is the end
    os._exit(0)


def main() -> None:
    """Relays to HOST PORT, ROUND_TRIP seconds away, until standard input closes."""
    host, port, round_trip = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    options = {"loop_factory": _precise_loop}
    anyio.run(_relay, host, int(port), float(round_trip), backend="asyncio", backend_options=options)


def _precise_loop() -> asyncio.AbstractEventLoop:
    # select() waits to the microsecond; epoll, asyncio's own choice, rounds up to whole milliseconds.
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    main()
