"""The HTTP clients of a transport, and the libraries that they use: httpx, or aiohttp with the extra `fast`."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
import urllib.request
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cache, lru_cache, partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import anyio
import httpx

from cosd_providers.http.answers import HttpAnswer

if TYPE_CHECKING:
    from cosd_providers.http.fast import AiohttpClient

EventLoop: TypeAlias = Literal["asyncio", "uvloop"]

_FAST = "cosd_providers.http.fast"  # imported only if needed, because this module imports aiohttp

_IDLE_SECONDS = 5.0  # seconds for which an idle connection is kept
_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_SECONDS)

_log = logging.getLogger("cosd_providers")


def carrier() -> str:
    """Return the name of the HTTP library that sends requests: `"aiohttp"` if it is installed, otherwise `"httpx"`.

    It is also `"httpx"` if `COSD_HTTP=httpx` is set or the environment names a proxy.
    """
    off = _off() or not _installed("aiohttp") or _proxied()
    return "httpx" if off else "aiohttp"


def http_stack() -> str:
    """Return the HTTP library that sends requests, with its version, for people to read."""
    name = carrier()
    return f"{name} {metadata.version(name)}"


def event_loop() -> EventLoop:
    """Return the event loop for a `cosd` command: `"uvloop"` if it is installed, otherwise `"asyncio"`.

    It is also `"asyncio"` if `COSD_HTTP=httpx` is set. Programs that use the library choose their own event loop.
    """
    return "asyncio" if _off() or not _installed("uvloop") else "uvloop"


class HttpClients:
    """The HTTP clients for one server, one for each event loop. A client is closed when its last user leaves."""

    def __init__(self, url: str, timeout: httpx.Timeout, idle: int) -> None:
        self.idle = idle  # maximum number of idle connections to keep
        self._secure = url.lower().startswith("https:")
        self._timeout = timeout
        self._clients: dict[object, AiohttpClient | httpx.AsyncClient] = {}
        self._users: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self) -> None:
        """Count a user in this event loop."""
        loop = asyncio.get_running_loop()
        self._users[loop] = self._users.get(loop, 0) + 1

    async def leave(self) -> None:
        """Remove a user, and close the client if it was the last one."""
        loop = asyncio.get_running_loop()
        self._users[loop] -= 1
        if not self._users[loop]:
            del self._users[loop]
            client = self._clients.pop(loop, None)
            if client is not None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    @staticmethod
    def prepare() -> None:
        """Import the library that sends requests, because importing it takes longer than a request."""
        if carrier() != "httpx":
            import_module(_FAST)

    def get(self) -> AiohttpClient | httpx.AsyncClient:
        """Return the running event loop's client, which is created at its first use.

        Raises:
            OSError: the file that `SSL_CERT_FILE` names cannot be read.
        """
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            client = self._clients[loop] = self._new()
        return client

    def _new(self) -> AiohttpClient | httpx.AsyncClient:
        _log.debug("HTTP by %s", http_stack())
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts no certificate; reading those takes 25 ms
        if self._secure or _proxied():
            verify = _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if carrier() != "httpx":
            made: AiohttpClient = import_module(_FAST).AiohttpClient(lambda: self.idle, verify, _common_headers())
            return made
        if not _proxied():
            return _DirectClient(_HttpxTransport(lambda: self.idle, verify))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.idle)
        return httpx.AsyncClient(timeout=self._timeout, limits=limits, verify=verify)


async def ask(
    client: AiohttpClient | httpx.AsyncClient,
    method: str,
    url: httpx.URL,
    *,
    content: bytes,
    headers: Mapping[str, str],
    **options: Any,
) -> HttpAnswer:
    """Send a request, and return the answer, whose body has not been read yet.

    `content` is the JSON body; empty if there is none. The client adds its own `headers`. The `options` are `timeout`
    and `extensions`, as in httpx; the extensions are used in error messages.

    Raises:
        httpx.HTTPError: no answer arrived.
    """
    if not isinstance(client, httpx.AsyncClient):
        return await client.ask(method, url, content=content, headers=headers, **options)
    request = client.build_request(method, url, content=content or None, headers=headers, **options)
    if content:
        request.headers.setdefault("Content-Type", "application/json")
    return await client.send(request, stream=True, follow_redirects=False)


@cache
def _common_headers() -> Mapping[str, str]:
    """Return the headers that an httpx client sends with every request, by lower-case name."""
    return dict(httpx.AsyncClient(transport=httpx.AsyncBaseTransport()).headers)


class _DirectClient(httpx.AsyncClient):
    """An httpx client that passes requests directly to its transport, without redirects, authentication and hooks.

    Without them a request takes less processor time, and leaves no reference cycles.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        super().__init__(transport=transport, trust_env=False)
        self._direct = transport

    def build_request(self, method: str, url: httpx.URL | str, **options: Any) -> httpx.Request:
        """Create a request from the options that `Transport` gives, which need no merging by httpx."""
        url, content = httpx.URL(url), options["content"] or b""
        headers = {"host": url.netloc.decode("ascii"), **_common_headers()}
        headers |= {name.lower(): value for name, value in options["headers"].items()}
        if content or method != "GET":
            headers["content-length"] = str(len(content))
        extensions = {**options["extensions"], "timeout": options["timeout"].as_dict()}
        stream = httpx.ByteStream(content)  # with `content`, httpx would build the headers again
        request = httpx.Request(method, url, headers=headers, stream=stream, extensions=extensions)
        if self.cookies:
            self.cookies.set_cookie_header(request)
        return request

    async def send(self, request: httpx.Request, **_: Any) -> httpx.Response:
        """Send a request, and return the answer, whose body has not been read yet.

        Raises:
            httpx.TransportError: no answer arrived.
        """
        try:
            response = await self._direct.handle_async_request(request)
        except httpx.RequestError as error:
            error.request = request
            raise
        response.request = request
        if "set-cookie" in response.headers:
            self.cookies.extract_cookies(response)
        return response


class _HttpxTransport(httpx.AsyncBaseTransport):
    """A separate httpx transport for each connection.

    One transport for all would check all its connections for each request. With 64 connections, a request would take
    three times as long.
    """

    def __init__(self, idle: Callable[[], int], verify: ssl.SSLContext) -> None:
        self._idle = idle  # function that returns the maximum number of idle connections to keep
        self._verify = verify
        self._all = set[httpx.AsyncHTTPTransport]()
        self._free = deque[tuple[float, httpx.AsyncHTTPTransport]]()  # with times of release; last in, first out

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request over a free connection or a new one.

        Raises:
            httpx.TransportError: no answer arrived.
        """
        if self._free:
            _, transport = self._free.pop()
        else:
            transport = httpx.AsyncHTTPTransport(verify=self._verify, limits=_ONE)
            self._all.add(transport)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await self._drop(transport)
            raise
        keeps = all(one.headers.get("connection", "").lower() != "close" for one in (request, response))
        response.stream = _HttpxBody(
            cast("httpx.AsyncByteStream", response.stream), partial(self._left, transport, keeps)
        )
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        self._free.clear()
        for transport in [*self._all]:
            await self._drop(transport)

    async def _left(self, transport: httpx.AsyncHTTPTransport, keeps: bool, complete: bool) -> None:
        """Keep or close the connection of an ended request, and close connections that have been idle for too long."""
        now = time.monotonic()
        surplus = list[httpx.AsyncHTTPTransport]()
        while self._free and self._free[0][0] < now - _IDLE_SECONDS:
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
    """The body of an answer. When it is closed, it reports whether it was read to its end."""

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


def _proxied() -> bool:
    """Test whether the environment names a proxy."""
    return any(name != "no" for name in urllib.request.getproxies())


def _off() -> bool:
    return os.environ.get("COSD_HTTP") == "httpx"


@cache
def _installed(name: str) -> bool:
    return find_spec(name) is not None


@lru_cache(16)
def _certificates(file: str | None, folder: str | None) -> ssl.SSLContext:  # noqa: ARG001 - httpx reads them itself
    return httpx.create_ssl_context()
