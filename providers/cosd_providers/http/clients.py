"""The HTTP clients of a transport, and the libraries that they use: httpx, or aiohttp with the extra `fast`."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import urllib.request
from functools import cache, lru_cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Literal, TypeAlias, cast

import anyio
import httpx

__all__ = ["EventLoop", "HttpClients", "carrier", "event_loop", "http_stack"]

EventLoop: TypeAlias = Literal["asyncio", "uvloop"]

_FAST = "cosd_providers.http.fast"  # imported only if needed, because this module imports aiohttp

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
    """The HTTP clients for one server, one for each event loop. A client is closed when its last user leaves.

    Args:
        url: the server's URL.
        timeout: the time limits.
        idle: maximum number of idle connections to keep.
    """

    def __init__(self, url: str, timeout: httpx.Timeout, idle: int) -> None:
        self.idle = idle
        self._secure = url.lower().startswith("https:")
        self._timeout = timeout
        self._clients: dict[object, httpx.AsyncClient] = {}
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

    def get(self) -> httpx.AsyncClient:
        """Return the running event loop's client, which is created at its first use.

        Raises:
            OSError: the file that `SSL_CERT_FILE` names cannot be read.
        """
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            client = self._clients[loop] = self._new()
        return client

    def _new(self) -> httpx.AsyncClient:
        _log.debug("HTTP by %s", http_stack())
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it trusts no certificate; reading those takes 25 ms
        if self._secure or _proxied():
            verify = _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if carrier() != "httpx":
            return cast("httpx.AsyncClient", import_module(_FAST).AiohttpClient(lambda: self.idle, verify=verify))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.idle)
        return httpx.AsyncClient(timeout=self._timeout, limits=limits, verify=verify)


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
