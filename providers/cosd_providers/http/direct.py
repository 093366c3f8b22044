"""This library's own client of HTTP: what its requests need of httpx's, and no more.

They need headers, cookies and httpx's errors, but no redirects, no authentication and no hooks. What carries them is
asked directly: `httpx.AsyncClient` takes as long as its transport does, and its objects for requests and answers refer
to each other in circles that the garbage collector has to find. Proxies are left to that client (`stack`).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol

import httpx

from cosd_providers.http.answers import HttpAnswer

__all__ = ["Carrier", "DirectClient", "HttpxCarrier", "Outgoing", "certificates", "common_headers", "parsed_url"]

parsed_url = lru_cache(256)(httpx.URL)
"""A URL, parsed once: that takes as long as sending a request."""


@cache
def common_headers() -> Mapping[str, str]:
    """The headers that a client of httpx sends with every request, by names in small letters."""
    nothing = httpx.MockTransport(lambda _: httpx.Response(200))
    return dict(httpx.AsyncClient(transport=nothing).headers)


def certificates() -> ssl.SSLContext:
    """The certificates that httpx believes; read once for each pair of `SSL_CERT_FILE` and `SSL_CERT_DIR`.

    Raises:
        OSError: those that `SSL_CERT_FILE` names cannot be read.
    """
    return _certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(16)
def _certificates(file: str | None, folder: str | None) -> ssl.SSLContext:  # noqa: ARG001 - httpx reads them itself
    return httpx.create_ssl_context()


@dataclass(slots=True)
class Outgoing:
    """One request.

    Attributes:
        method: GET or POST.
        url: where it goes.
        headers: beside the common ones; names in small letters.
        content: the body, JSON.
        timeout: its limits of time.
        extensions: for errors, see `errors.FIXED_WAIT`.
    """

    method: str
    url: str
    headers: dict[str, str]
    content: bytes
    timeout: httpx.Timeout
    extensions: Mapping[str, Any]

    def request(self) -> httpx.Request:
        """The same for httpx."""
        return httpx.Request(
            self.method,
            parsed_url(self.url),
            headers={**common_headers(), **self.headers},
            content=self.content or None,
            extensions={**self.extensions, "timeout": self.timeout.as_dict()},
        )


class Carrier(Protocol):
    """Carrier of the requests of one event loop."""

    async def exchange(self, outgoing: Outgoing) -> HttpAnswer:
        """Send a request; the body of the answer is still to be read.

        Returns:
            An `httpx.Response`, with its request, if the answer has cookies.

        Raises:
            httpx.TransportError: the answer did not begin.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class DirectClient:
    """Client of one event loop.

    Args:
        carrier: what carries its requests.

    Attributes:
        is_closed: True once it is closed.
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
        """Send a request; the body of the answer is still to be read.

        Raises:
            httpx.HTTPError: the answer did not begin.
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
    """httpx's transport.

    Args:
        idle: the number of connections kept for later requests, at most.
        secure: whether URLs of https are asked. Otherwise no certificates are read, which takes 25 ms, and none is
            believed.
    """

    def __init__(self, idle: int, *, secure: bool) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=idle)
        believed = certificates() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._transport = httpx.AsyncHTTPTransport(verify=believed, limits=limits)
        self.aclose = self._transport.aclose

    async def exchange(self, outgoing: Outgoing) -> HttpAnswer:
        """Send a request; see `Carrier`."""
        request = outgoing.request()
        answer = await self._transport.handle_async_request(request)
        answer.request = request
        return answer
