"""aiohttp as the transport beneath httpx (extra `fast`): a third of the processor time of a request.

Its errors become those that httpx's own transport would raise. Proxies are left to that one (`stack`). Observed of
aiohttp 3.14:

- It has no limit for writing a request, and none on idle connections; both are kept here.
- Once a connection is lost, its stream hides what had arrived before. `_Body` gives that first.

Of httpx, this library's requests need the headers and the errors, but no redirects, no authentication and no hooks,
nor its objects for requests and answers: these take longer than aiohttp does, and refer to each other in circles that
the garbage collector has to find. `FastClient.ask` leaves them out.
"""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from typing import Any, cast

import aiohttp
import httpx
from yarl import URL

from cosd_providers.http.answers import HttpAnswer

__all__ = ["AiohttpTransport", "FastClient"]

_LONGEST_HEADER = 1 << 16  # bytes
_LARGE = 1 << 20  # bytes of a body that aiohttp wants as a file, so that the event loop writes it in parts
_IDLE_SECONDS = 5.0  # for which a connection is kept, as by httpx
_REDIRECTS = (301, 302, 303, 307, 308)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode  # as httpx does


class FastClient(httpx.AsyncClient):
    """Client of httpx over aiohttp, made within its event loop, with a shorter way for this library's own requests.

    Args:
        timeout: as in `httpx.AsyncClient`.
        idle: as in `AiohttpTransport`.
    """

    def __init__(self, timeout: httpx.Timeout, idle: Callable[[], int]) -> None:
        self._carrier = AiohttpTransport(idle)
        super().__init__(timeout=timeout, transport=self._carrier)
        self._common = dict(self.headers)

    async def ask(
        self,
        method: str,
        url: httpx.URL,
        *,
        body: object,
        headers: Mapping[str, str],
        timeout: httpx.Timeout,  # noqa: ASYNC109 - httpx's
        extensions: Mapping[str, Any],
    ) -> HttpAnswer:
        """Send a request as `build_request` and `send` do; with a body of JSON unless it is None.

        Raises:
            UnicodeEncodeError: the body has half a surrogate pair.
            httpx.HTTPError: the answer did not begin.
        """
        content = b"" if body is None else _encode(body).encode()
        wanted = {**self._common, **{name.lower(): value for name, value in headers.items()}}
        if content:
            wanted.setdefault("content-type", "application/json")
        more = {**extensions, "timeout": timeout.as_dict()}
        if len(self.cookies.jar):
            request = self.build_request(method, url, content=content or None, headers=wanted, extensions=more)
            return await self.send(request, stream=True)

        def asked() -> httpx.Request:
            return httpx.Request(method, url, headers=wanted, extensions=more)

        try:
            found = await self._carrier.exchange(method, url, wanted, content, more["timeout"])
        except httpx.RequestError as error:
            error.request = asked()
            raise
        if "set-cookie" in found.answer.headers or "content-encoding" in found.answer.headers:
            answer = httpx.Response(
                found.answer.status, headers=found.answer.raw_headers, stream=found, request=asked()
            )
            self.cookies.extract_cookies(answer)
            return answer
        found.asked = asked
        return _Answer(found)


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Transport of one event loop, made within it.

    Args:
        idle: the number of connections kept for later requests, at most: of so many requests at the same time the
            connection is kept, of others it is closed.
    """

    def __init__(self, idle: Callable[[], int]) -> None:
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
        headers = {name.decode("ascii").lower(): value.decode("latin-1") for name, value in request.headers.raw}
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        body = await self.exchange(request.method, request.url, headers, await request.aread(), limits)
        return httpx.Response(body.answer.status, headers=body.answer.raw_headers, stream=body)

    async def exchange(
        self,
        method: str,
        url: httpx.URL,
        headers: dict[str, str],
        content: bytes,
        limits: Mapping[str, float | None],
    ) -> _Body:
        """Send a request with these headers alone, named in small letters; the answer's body is still to be read.

        Raises:
            httpx.TransportError: the answer did not begin.
        """
        if url.scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"Request URL has an unsupported protocol '{url.scheme}://'.")
        keeps = self._kept < self._idle() and headers.get("connection") != "close"
        if not keeps:
            headers = {**headers, "connection": "close"}
        self._kept += keeps
        try:
            answer = await self._send(method, str(url), headers, content, limits, keeps=keeps)
        except BaseException:
            self._kept -= keeps
            raise
        return _Body(answer, self._left if keeps else _nothing)

    async def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        content: bytes,
        limits: Mapping[str, float | None],
        *,
        keeps: bool,
    ) -> aiohttp.ClientResponse:
        parts = [part for name in ("connect", "write", "read") if (part := limits.get(name)) is not None]
        try:
            async with asyncio.timeout(sum(parts) if len(parts) == 3 else None):
                return await (self._keeping if keeps else self._closing).request(
                    method,
                    self._url(url),
                    data=io.BytesIO(content) if len(content) > _LARGE else content or None,
                    headers=headers,
                    allow_redirects=False,
                    timeout=_timeout(limits.get("connect"), limits.get("read")),
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
    """The body of an answer, as it arrives.

    Attributes:
        answer: aiohttp's.
        asked: makes the request, for errors; None where httpx puts it into them.
    """

    asked: Callable[[], httpx.Request] | None = None

    def __init__(self, answer: aiohttp.ClientResponse, left: Callable[[], None]) -> None:
        self.answer = answer
        self._left = left
        self._open = True

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        content = self.answer.content
        try:
            while data := await content.readany():
                yield data
        except (aiohttp.ClientError, TimeoutError) as error:
            content.set_exception(cast("BaseException", None))  # or what came before it could not be read
            if rest := content.read_nowait():
                yield rest
            translated = _translated(error)
            if self.asked is not None:
                translated.request = self.asked()
            raise translated from error

    async def aclose(self) -> None:
        """Close the connection, or keep it if all of the answer was read."""
        if self._open:
            self._open = False
            self._left()
            self.answer.release()


class _Answer:
    """An `HttpAnswer` by aiohttp, with this body."""

    __slots__ = ("_body", "_headers", "aclose", "aiter_bytes", "status_code")

    def __init__(self, body: _Body) -> None:
        self.status_code = body.answer.status
        self.aclose = body.aclose
        self.aiter_bytes = body.__aiter__
        self._body = body
        self._headers: httpx.Headers | None = None

    @property
    def headers(self) -> httpx.Headers:
        """Its headers."""
        if self._headers is None:
            self._headers = httpx.Headers(self._body.answer.raw_headers)
        return self._headers

    @property
    def is_success(self) -> bool:
        """True for a status of success."""
        return 200 <= self.status_code < 300

    @property
    def has_redirect_location(self) -> bool:
        """True if the server redirects, and says where."""
        return self.status_code in _REDIRECTS and "location" in self.headers


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


@cache
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=read)


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
