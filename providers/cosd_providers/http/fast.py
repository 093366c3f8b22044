"""An httpx transport that sends requests with aiohttp (extra `fast`), in less processor time than httpx needs.

aiohttp's errors are translated into the errors of httpx's transport. This module also handles other peculiarities of
aiohttp, as observed in version 3.14:

- aiohttp has no time limit for writing a request, no time limit after an interim answer such as `100 Continue`, and no
  limit on the number of idle connections. This module enforces all three limits.
- Its read timeout also runs while the reader is busy. So it is used only until an answer begins.
- If a packet contains only a chunk that aiohttp cannot parse, it closes the connection, but the waiting reader receives
  no error. `_Body` notices this.
- After a lost connection, its stream hides bytes that have already arrived. `_Body` yields these bytes first.
- If a packet contains more bytes than an answer's `Content-Length`, aiohttp drops the answer. In contrast, httpx
  accepts the answer and drops the surplus bytes.
"""

from __future__ import annotations

import asyncio
import io
import math
import socket
import ssl
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable
from functools import cache, lru_cache
from typing import cast

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

__all__ = ["AiohttpTransport"]

_IDLE_SECONDS = 5.0  # seconds for which an idle connection is kept, as httpx does
_LONGEST_HEADER = 1 << 16  # maximum length of a header, in bytes
_SMALL = 1 << 15  # size, in bytes, up to which the operating system accepts a body in one call
_LARGE = 1 << 20  # size, in bytes, above which a body is passed as a file, so that aiohttp writes it in parts
_LOOK_SECONDS = 2.0  # seconds between two checks of the connection of an answer that is awaited
_ADDED = ("user-agent", "accept", "accept-encoding", "content-type")  # headers that aiohttp would add by itself


class AiohttpTransport(httpx.AsyncBaseTransport):
    """An httpx transport that uses aiohttp in one event loop; it must be created within that loop.

    Args:
        idle: function that returns the maximum number of idle connections to keep. If more requests are in progress,
            the connections of the later ones are closed after use.
        verify: the certificates to trust.
    """

    def __init__(self, idle: Callable[[], int], verify: ssl.SSLContext) -> None:
        resolver = aiohttp.ThreadedResolver()
        connector = aiohttp.TCPConnector(limit=0, ssl=verify, resolver=resolver, keepalive_timeout=_IDLE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            response_class=_Response,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_ADDED,
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        self._forgotten = weakref.finalize(self, _forget, self._session)
        self._idle = idle
        self._kept = 0  # number of requests in progress whose connections will be kept

    async def aclose(self) -> None:
        """Close all connections."""
        self._forgotten.detach()
        await self._session.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the answer, whose body has not been read yet.

        Raises:
            httpx.TransportError: no answer arrived.
        """
        if request.url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"Request URL has an unsupported protocol '{request.url.scheme}://'.")
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        content = await request.aread()
        headers = dict(request.headers.items())  # `dict` alone would look up each name, which is slow
        keeps = self._kept < self._idle() and headers.get("connection") != "close"
        if not keeps:
            headers["connection"] = "close"
        asking = self._session.request(
            request.method,
            _yarl(str(request.url)),
            data=io.BytesIO(content) if len(content) > _LARGE else content or None,
            headers=headers,
            allow_redirects=False,
            timeout=_timeout(limits.get("connect"), limits.get("read")),
        )
        self._kept += keeps
        try:
            async with asyncio.timeout(_in_all(limits)):
                answer = await asking
        except BaseException as error:
            self._kept -= keeps
            if isinstance(error, aiohttp.ClientError):
                raise _translated(error) from error
            if isinstance(error, TimeoutError):  # raised by the limit on connecting, writing and waiting together
                kind = httpx.WriteTimeout if len(content) > _SMALL else httpx.ReadTimeout
                raise kind(str(error)) from error
            if isinstance(error, UnicodeError):  # raised for an invalid host name, before the name is looked up
                raise httpx.ConnectError(str(error)) from socket.gaierror(socket.EAI_NONAME, "not a host's name")
            raise
        body = _Body(answer, limits.get("read"), self._left if keeps else None)
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=body)

    def _left(self) -> None:
        self._kept -= 1


class _Response(aiohttp.ClientResponse):
    """aiohttp's answer, except that its connection is always closed if the request contains `Connection: close`."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Wait for the beginning of the answer."""
        if connection.protocol is not None and self.request_info.headers.get("connection") == "close":
            connection.protocol.force_close()
        return await super().start(connection)


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it arrives."""

    def __init__(self, answer: aiohttp.ClientResponse, limit: float | None, left: Callable[[], None] | None) -> None:
        self._answer = answer
        self._limit = limit
        self._left = left

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        content, connection = self._answer.content, self._answer.connection
        protocol = None if connection is None else connection.protocol
        if protocol is not None:  # otherwise, the whole answer has arrived
            protocol.read_timeout = None
            protocol.start_timeout()  # without a limit, this only cancels aiohttp's timer
        try:
            while data := await self._next(protocol):
                yield data
        except (aiohttp.ClientError, TimeoutError) as error:
            content.set_exception(cast("BaseException", None))  # while an error is set, earlier bytes cannot be read
            if rest := content.read_nowait():
                yield rest
            raise _translated(error) from error

    async def _next(self, protocol: ResponseHandler | None) -> bytes:
        """Wait for the next bytes; b"" at the end."""
        content, time = self._answer.content, asyncio.get_running_loop().time
        deadline = math.inf if self._limit is None else time() + self._limit
        while True:
            try:
                async with asyncio.timeout_at(min(deadline, time() + _LOOK_SECONDS)):
                    return await content.readany()
            except TimeoutError:
                if protocol is not None and not protocol.is_connected():
                    raise aiohttp.ClientPayloadError("the answer cannot be read") from None
                if content.exception() is not None or time() >= deadline:
                    raise

    async def aclose(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()
        self._answer.release()


@lru_cache(256)
def _yarl(url: str) -> URL:
    return URL(url, encoded=True)  # httpx has already encoded the URL


@cache
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=read)


def _in_all(limits: dict[str, float | None]) -> float | None:
    """Return the maximum number of seconds until an answer begins; None if there is no limit."""
    parts = [part for name in ("connect", "write", "read") if (part := limits.get(name)) is not None]
    return sum(parts) if len(parts) == 3 else None


def _forget(session: aiohttp.ClientSession) -> None:
    """Discard a session that its owner left open, without the error that aiohttp would log."""
    connector = session.connector
    session.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a finalizer cannot await anything
        if connector is not None:
            aiohttp.BaseConnector.close(connector)  # not the method of its subclasses, which is a coroutine


def _translated(error: Exception) -> httpx.TransportError:
    """Convert an error of aiohttp to the error that httpx's own transport would raise."""
    kind: type[httpx.TransportError] = httpx.RemoteProtocolError
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        kind = httpx.ConnectTimeout
    elif isinstance(error, TimeoutError):
        kind = httpx.ReadTimeout
    elif isinstance(error, aiohttp.ClientConnectorError):
        kind = httpx.ConnectError
    elif isinstance(error, aiohttp.ClientOSError):
        kind = httpx.ReadError
    elif isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        kind = httpx.UnsupportedProtocol
    return kind(str(error))
