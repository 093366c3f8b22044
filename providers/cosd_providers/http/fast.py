"""A client that sends requests with aiohttp (extra `fast`), in half the processor time that httpx needs.

aiohttp's errors are translated into the errors of httpx's transport. This module also handles other peculiarities of
aiohttp, as observed in version 3.14:

- aiohttp has no time limit for writing a request, no time limit after an interim answer such as `100 Continue`, and no
  limit on the number of idle connections. This module enforces all three limits.
- Its read timeout cancels a timer and starts another whenever bytes arrive, which is slow, and it also runs while the
  reader is busy. So it is used only until an answer begins; after that, `_Answer` has its own timer, which checks at
  longer intervals.
- If a packet contains only a chunk that aiohttp cannot parse, it closes the connection, but the waiting reader receives
  no error. The timer of `_Answer` notices this.
- After a lost connection, its stream hides bytes that have already arrived. `_Answer` yields these bytes first.
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
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache, lru_cache, partial
from typing import Any, cast

import aiohttp
import httpx
from aiohttp.connector import Connection
from yarl import URL

from cosd_providers.http.answers import HttpAnswer

_IDLE_SECONDS = 5.0  # seconds for which an idle connection is kept, as httpx does
_LONGEST_HEADER = 1 << 16  # maximum length of a header, in bytes
_SMALL = 1 << 15  # size, in bytes, up to which the operating system accepts a body in one call
_LARGE = 1 << 20  # size, in bytes, above which a body is passed as a file, so that aiohttp writes it in parts
_LOOK_SECONDS = 2.0  # seconds between two checks of an answer's connection
_REDIRECTS = (301, 302, 303, 307, 308)


class AiohttpClient:
    """A client that uses aiohttp in one event loop; it must be created within that loop.

    It makes no `httpx.Request` or `httpx.Response` where none is needed: they take as long as sending the request.

    Args:
        idle: function that returns the maximum number of idle connections to keep. If more requests are in progress,
            the connections of the later ones are closed after use.
        headers: headers that are sent with every request.
    """

    def __init__(self, idle: Callable[[], int], verify: ssl.SSLContext, headers: Mapping[str, str]) -> None:
        self.is_closed = False  # whether `aclose` has been called
        resolver = aiohttp.ThreadedResolver()
        connector = aiohttp.TCPConnector(limit=0, ssl=verify, resolver=resolver, keepalive_timeout=_IDLE_SECONDS)
        self._session = aiohttp.ClientSession(
            connector=connector,
            response_class=_Response,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            skip_auto_headers=("content-type",),
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        self._forgotten = weakref.finalize(self, _forget, self._session)
        self._cookies: httpx.Cookies | None = None
        self._idle = idle
        self._kept = 0  # number of requests in progress whose connections will be kept

    async def aclose(self) -> None:
        """Close all connections."""
        self.is_closed = True
        self._forgotten.detach()
        await self._session.close()

    async def ask(
        self,
        method: str,
        url: httpx.URL,
        *,
        content: bytes,
        headers: Mapping[str, str],
        timeout: httpx.Timeout,  # noqa: ASYNC109 - httpx's
        extensions: Mapping[str, bool],
    ) -> HttpAnswer:
        """Send a request, and return the answer, whose body has not been read yet; see `clients.ask`.

        Raises:
            httpx.TransportError: no answer arrived.
        """
        request = partial(_request, method, url, headers, {**extensions, "timeout": timeout})
        sent = {name.lower(): value for name, value in headers.items()}
        if content:
            sent.setdefault("content-type", "application/json")
        if self._cookies is not None:
            made = request()
            self._cookies.set_cookie_header(made)
            if "cookie" in made.headers:
                sent["cookie"] = made.headers["cookie"]
        try:
            answer = await self._exchange(method, url, content, sent, timeout)
        except httpx.RequestError as error:
            error.request = request()
            raise
        answer.request = request
        if "set-cookie" not in answer.headers and "content-encoding" not in answer.headers:
            return answer
        response = httpx.Response(answer.status_code, headers=answer.raw_headers, stream=answer, request=request())
        if "set-cookie" in response.headers:
            self._cookies = self._cookies or httpx.Cookies()
            self._cookies.extract_cookies(response)
        return response

    async def _exchange(
        self, method: str, url: httpx.URL, content: bytes, headers: dict[str, str], limits: httpx.Timeout
    ) -> _Answer:
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"Request URL has an unsupported protocol '{url.scheme}://'.")
        keeps = self._kept < self._idle() and headers.get("connection") != "close"
        if not keeps:
            headers["connection"] = "close"
        asking = self._session.request(
            method,
            _yarl(url),
            data=io.BytesIO(content) if len(content) > _LARGE else content or None,
            headers=headers,
            allow_redirects=False,
            timeout=_timeout(limits.connect, limits.read),
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
        return _Answer(answer, limits.read, self._left if keeps else None)

    def _left(self) -> None:
        self._kept -= 1


class _Response(aiohttp.ClientResponse):
    """aiohttp's answer, except that its connection is always closed if the request contains `Connection: close`."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Wait for the beginning of the answer."""
        if connection.protocol is not None and self.request_info.headers.get("connection") == "close":
            connection.protocol.force_close()
        return await super().start(connection)


class _Answer(httpx.AsyncByteStream):
    """An `HttpAnswer` from aiohttp. It can also be the stream of an `httpx.Response`, which then decodes the body."""

    request: Callable[[], httpx.Request]

    def __init__(self, answer: aiohttp.ClientResponse, limit: float | None, left: Callable[[], None] | None) -> None:
        self.status_code = answer.status
        self.raw_headers = answer.raw_headers
        self._answer = answer
        self._limit = math.inf if limit is None else limit
        self._left = left
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = None  # the loop's time at which the reader began to wait for the next bytes

    @property
    def headers(self) -> Mapping[str, str]:
        """See `HttpAnswer`."""
        found = self._answer.headers
        return found if all(map(str.isascii, found.values())) else httpx.Headers(self.raw_headers)

    @property
    def is_success(self) -> bool:
        """See `HttpAnswer`."""
        return 200 <= self.status_code < 300

    @property
    def has_redirect_location(self) -> bool:
        """See `HttpAnswer`."""
        return self.status_code in _REDIRECTS and "location" in self.headers

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        content, connection, loop = self._answer.content, self._answer.connection, None
        if connection is not None and connection.protocol is not None:  # otherwise, the whole answer has arrived
            connection.protocol.read_timeout = None
            connection.protocol.start_timeout()  # without a limit, this only cancels aiohttp's timer
            loop = asyncio.get_running_loop()
        try:
            while True:
                if loop is not None:
                    self._since = loop.time()
                    if self._timer is None:
                        self._watch(loop, self._limit)
                data = await content.readany()
                self._since = None
                if not data:
                    break
                yield data
        except (aiohttp.ClientError, TimeoutError) as error:
            content.set_exception(cast("BaseException", None))  # while an error is set, earlier bytes cannot be read
            if rest := content.read_nowait():
                yield rest
            translated = _translated(error)
            translated.request = self.request()
            raise translated from error
        finally:
            if self._timer is not None:
                self._timer.cancel()

    aiter_bytes = __aiter__

    async def aclose(self) -> None:
        """See `HttpAnswer`."""
        left, self._left = self._left, None
        if left is not None:
            left()
        self._answer.release()

    def _watch(self, loop: asyncio.AbstractEventLoop, left: float) -> None:
        self._timer = loop.call_later(min(left, _LOOK_SECONDS), self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the reader's wait for bytes if it is too long or in vain. One timer serves many waits.

        If no reader is waiting, the timer stops, and the next wait starts it again.
        """
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._limit - loop.time()
        protocol = None if self._answer.connection is None else self._answer.connection.protocol
        if protocol is not None and not protocol.is_connected():
            self._answer.content.set_exception(aiohttp.ClientPayloadError("the answer cannot be read"))
        elif left > 0:
            self._watch(loop, left)
        else:
            self._answer.content.set_exception(TimeoutError("nothing more was read"))


def _request(method: str, url: httpx.URL, headers: Mapping[str, str], extensions: Mapping[str, Any]) -> httpx.Request:
    """Create the request that an error or a cookie needs."""
    timeout: httpx.Timeout = extensions["timeout"]
    return httpx.Request(method, url, headers=headers, extensions={**extensions, "timeout": timeout.as_dict()})


@lru_cache(256)
def _yarl(url: httpx.URL) -> URL:
    return URL(str(url), encoded=True)  # httpx has already encoded the URL


@cache
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=read)


def _in_all(limits: httpx.Timeout) -> float | None:
    """Return the maximum number of seconds until an answer begins; None if there is no limit."""
    parts = [part for part in (limits.connect, limits.write, limits.read) if part is not None]
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
