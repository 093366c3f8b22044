"""This library's own HTTP client, with only the parts of httpx's client that the library needs.

The library's requests need headers, cookies and httpx's errors, but no redirects, authentication or hooks. So they use
a `Carrier` directly. `httpx.AsyncClient` would double the time that its transport alone takes for a request, and its
request and response objects form reference cycles, which burden the garbage collector. Only requests through a proxy
use `httpx.AsyncClient` (see `stack`).
"""

from __future__ import annotations

import os
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Protocol

import anyio
import httpx

from cosd_providers.http.answers import HttpAnswer

__all__ = [
    "IDLE_SECONDS",
    "Carrier",
    "DirectClient",
    "HttpxCarrier",
    "Outgoing",
    "certificates",
    "common_headers",
    "parsed_url",
]

IDLE_SECONDS = 5.0
"""Number of seconds for which an idle connection is kept."""

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS)

parsed_url = lru_cache(256)(httpx.URL)
"""Parse a URL. The result is cached, because parsing a URL takes as long as sending a request."""


@cache
def common_headers() -> Mapping[str, str]:
    """Return the headers that an httpx client sends with every request, by lower-case name."""
    nothing = httpx.MockTransport(lambda _: httpx.Response(200))
    return dict(httpx.AsyncClient(transport=nothing).headers)


def certificates() -> ssl.SSLContext:
    """Return the certificates that httpx trusts. They are read again if `SSL_CERT_FILE` or `SSL_CERT_DIR` changes.

    Raises:
        OSError: the file that `SSL_CERT_FILE` names cannot be read.
    """
    return _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(16)
def _certificates(file: str | None, folder: str | None) -> ssl.SSLContext:  # noqa: ARG001 - httpx reads them itself
    return httpx.create_ssl_context()


@dataclass(slots=True)
class Outgoing:
    """A request that a carrier sends.

    Attributes:
        method: GET or POST.
        url: the target.
        headers: headers in addition to `common_headers`, with lower-case names.
        content: the JSON body; empty if there is none.
        timeout: the time limits.
        extensions: extensions of httpx, which are used in error messages; see `errors.FIXED_WAIT`.
    """

    method: str
    url: str
    headers: dict[str, str]
    content: bytes
    timeout: httpx.Timeout
    extensions: Mapping[str, Any]

    def request(self) -> httpx.Request:
        """Convert the request to an `httpx.Request` with all headers, so that httpx adds none."""
        url = parsed_url(self.url)
        headers = {"host": url.netloc.decode("ascii"), **common_headers(), **self.headers}
        if self.content or self.method != "GET":
            headers["content-length"] = str(len(self.content))
        extensions = {**self.extensions, "timeout": self.timeout.as_dict()}
        return httpx.Request(
            self.method, url, headers=headers, stream=httpx.ByteStream(self.content), extensions=extensions
        )


class Carrier(Protocol):
    """An object that sends the requests of one event loop with an HTTP library."""

    async def exchange(self, outgoing: Outgoing) -> HttpAnswer:
        """Send a request and return the answer, whose body has not been read yet.

        Returns:
            The answer. If it sets cookies, it is an `httpx.Response` with its request.

        Raises:
            httpx.TransportError: no answer arrived.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class DirectClient:
    """The HTTP client of one event loop.

    Args:
        carrier: the carrier that sends the requests.

    Attributes:
        is_closed: whether `aclose` has been called.
    """

    def __init__(self, carrier: Carrier) -> None:
        self.is_closed = False
        self._carrier = carrier
        self._cookies: httpx.Cookies | None = None

    async def aclose(self) -> None:
        """Close all connections."""
        self.is_closed = True
        await self._carrier.aclose()

    async def ask(
        self,
        method: str,
        url: str,
        *,
        content: bytes,
        headers: Mapping[str, str],
        timeout: httpx.Timeout,  # noqa: ASYNC109 - httpx's
        extensions: Mapping[str, Any],
    ) -> HttpAnswer:
        """Send a request and return the answer, whose body has not been read yet.

        Raises:
            httpx.HTTPError: no answer arrived.
        """
        outgoing = Outgoing(
            method, url, {name.lower(): headers[name] for name in headers}, content, timeout, extensions
        )
        if content:
            outgoing.headers.setdefault("content-type", "application/json")
        if self._cookies is not None:
            request = outgoing.request()
            self._cookies.set_cookie_header(request)
            if "cookie" in request.headers:
                outgoing.headers["cookie"] = request.headers["cookie"]
        try:
            answer = await self._carrier.exchange(outgoing)
        except httpx.RequestError as error:
            error.request = outgoing.request()
            raise
        if isinstance(answer, httpx.Response) and "set-cookie" in answer.headers:
            self._cookies = self._cookies or httpx.Cookies()
            self._cookies.extract_cookies(answer)
        return answer


class HttpxCarrier:
    """A carrier with a separate httpx transport for each connection.

    It does not use the connection pool of httpcore, because that pool checks all its connections for each request. With
    64 connections, a request would take three times as long.

    Args:
        idle: function that returns the maximum number of idle connections to keep.
        secure: whether URLs are https. If not, no certificates are read, which saves 25 ms, and none is trusted.
    """

    def __init__(self, idle: Callable[[], int], *, secure: bool) -> None:
        self._idle = idle
        self._believed = certificates() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._all = set[httpx.AsyncHTTPTransport]()
        self._free = deque[tuple[float, httpx.AsyncHTTPTransport]]()  # with times of release; last in, first out

    async def exchange(self, outgoing: Outgoing) -> HttpAnswer:
        """Send a request; see `Carrier`."""
        request = outgoing.request()
        if self._free:
            _, transport = self._free.pop()
        else:
            transport = httpx.AsyncHTTPTransport(verify=self._believed, limits=_ONE)
            self._all.add(transport)
        try:
            answer = await transport.handle_async_request(request)
        except BaseException:
            await self._drop(transport)
            raise
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.request = request
        keeps = all(headers.get("connection", "").lower() != "close" for headers in (outgoing.headers, answer.headers))
        answer.stream = _HttpxBody(answer.stream, partial(self._left, transport, keeps))
        return answer

    async def aclose(self) -> None:
        """Close all connections."""
        self._free.clear()
        for transport in [*self._all]:
            await self._drop(transport)

    async def _left(self, transport: httpx.AsyncHTTPTransport, keeps: bool, complete: bool) -> None:
        """Keep or close the connection of an ended request, and close connections that have been idle for too long."""
        now = time.monotonic()
        surplus = list[httpx.AsyncHTTPTransport]()
        while self._free and self._free[0][0] < now - IDLE_SECONDS:
            surplus.append(self._free.popleft()[1])
        if keeps and complete and transport in self._all and len(self._free) < self._idle():
            self._free.append((now, transport))
        else:
            surplus.append(transport)
        for one in surplus:
            await self._drop(one)

    async def _drop(self, transport: httpx.AsyncHTTPTransport) -> None:
        self._all.discard(transport)
        with anyio.CancelScope(shield=True):
            await transport.aclose()


class _HttpxBody(httpx.AsyncByteStream):
    """The body of an answer. When it is closed, it reports to the carrier whether it was read to its end."""

    def __init__(self, stream: httpx.AsyncByteStream, left: Callable[[bool], Awaitable[None]]) -> None:
        self._stream = stream
        self._left: Callable[[bool], Awaitable[None]] | None = left
        self._complete = False

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for part in self._stream:
            yield part
        self._complete = True

    async def aclose(self) -> None:
        left, self._left = self._left, None
        if left is None:
            return
        complete = False
        try:
            await self._stream.aclose()
            complete = self._complete
        finally:
            await left(complete)
