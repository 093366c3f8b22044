"""aiohttp as the transport beneath httpx (extra `fast`): half the processor time for each event of a stream.

Its errors become those that httpx's own transport would raise. Proxies are left to that one (`stack`). Observed of
aiohttp 3.14:

- It has no limit for writing a request, and none on idle connections; both are kept here.
- Once a connection is lost, its stream hides what had arrived before. `_Body` gives that first.
"""

from __future__ import annotations

import asyncio
import io
import ssl
import warnings
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import aiohttp
import httpx
from yarl import URL

__all__ = ["AiohttpTransport"]

_LONGEST_HEADER = 1 << 16  # bytes
_LARGE = 1 << 20  # bytes of a body that aiohttp wants as a file, so that the event loop writes it in parts
_IDLE_SECONDS = 5.0  # for which a connection is kept, as by httpx


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Transport of one event loop, made within it.

    Args:
        idle: connections kept for later requests, at most: of so many requests at the same time the connection is
            kept, of others it is closed.
    """

    def __init__(self, idle: int) -> None:
        certificates = httpx.create_ssl_context()
        self._keeping = _session(certificates, keepalive_timeout=_IDLE_SECONDS)
        self._closing = _session(certificates, force_close=True)
        self._forgotten = weakref.finalize(self, _forget, self._keeping, self._closing)
        self._idle = idle
        self._kept = 0  # requests under way whose connections are kept
        self._urls: dict[str, URL] = {}

    async def aclose(self) -> None:
        """Close all connections."""
        self._forgotten.detach()
        await self._keeping.close()
        await self._closing.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the answer's body is still to be read.

        Raises:
            httpx.TransportError: the answer did not begin.
        """
        if request.url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"Request URL has an unsupported protocol '{request.url.scheme}://'.")
        keeps = self._kept < self._idle and request.headers.get("connection") != "close"
        self._kept += keeps
        try:
            answer = await self._send(request, keeps=keeps)
        except BaseException:
            self._kept -= keeps
            raise
        body = _Body(answer, self._left if keeps else _nothing)
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=body)

    async def _send(self, request: httpx.Request, *, keeps: bool) -> aiohttp.ClientResponse:
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers.raw}
        if not keeps:
            headers["Connection"] = "close"
        content = await request.aread()
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        parts = [part for name in ("connect", "write", "read") if (part := limits.get(name)) is not None]
        try:
            async with asyncio.timeout(sum(parts) if len(parts) == 3 else None):
                return await (self._keeping if keeps else self._closing).request(
                    request.method,
                    self._url(str(request.url)),
                    data=io.BytesIO(content) if len(content) > _LARGE else content or None,
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=limits.get("connect"), sock_read=limits.get("read")
                    ),
                )
        except aiohttp.ClientError as error:
            raise _translated(error) from error
        except TimeoutError as error:  # aiohttp knows the other limits
            raise httpx.WriteTimeout(str(error)) from error

    def _left(self) -> None:
        self._kept -= 1

    def _url(self, text: str) -> URL:
        url = self._urls.get(text)
        if url is None:
            if len(self._urls) > 100:
                self._urls.clear()
            url = self._urls[text] = URL(text, encoded=True)
        return url


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it arrives."""

    def __init__(self, answer: aiohttp.ClientResponse, left: Callable[[], None]) -> None:
        self._answer = answer
        self._left = left
        self._open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._answer.content
        try:
            while data := await content.readany():
                yield data
        except (aiohttp.ClientError, TimeoutError) as error:
            content.set_exception(cast("BaseException", None))  # or what came before it could not be read
            if rest := content.read_nowait():
                yield rest
            raise _translated(error) from error

    async def aclose(self) -> None:
        """Close the connection, or keep it if all of the answer was read."""
        if self._open:
            self._open = False
            self._left()
            self._answer.release()


def _session(certificates: ssl.SSLContext, **options: Any) -> aiohttp.ClientSession:
    """A session that sends what httpx made, and nothing of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=certificates, limit=0, resolver=aiohttp.ThreadedResolver(), **options),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=_LONGEST_HEADER,
        max_field_size=_LONGEST_HEADER,
        skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
    )


def _forget(*sessions: aiohttp.ClientSession) -> None:
    """Drop sessions that nobody has closed, as quietly as httpx does: aiohttp would report each as an error."""
    for session in sessions:
        connector = session.connector
        session.detach()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # nothing can wait for it here
            if connector is not None:
                aiohttp.BaseConnector.close(connector)  # that of its subclasses is a coroutine


def _nothing() -> None:
    """Do nothing."""


def _translated(error: Exception) -> httpx.TransportError:
    """The error as httpx's own transport would raise it."""
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
