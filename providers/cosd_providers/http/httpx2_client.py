"""httpx's interface for a user's `httpx2.AsyncClient`. This module does not import httpx2; the user has done so."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx


def is_httpx2(client: object) -> bool:
    """Test whether an object is an `httpx2.AsyncClient`."""
    module = sys.modules.get("httpx2")
    return module is not None and isinstance(client, module.AsyncClient)


def behind_httpx(client: Any) -> httpx.AsyncClient:
    """Create an httpx client that sends all requests through an `httpx2.AsyncClient`, with that client's timeouts."""
    timeout = httpx.Timeout(**client.timeout.as_dict())
    made = httpx.AsyncClient(transport=_Transport(client), timeout=timeout, trust_env=False)
    for name in [*made.headers]:
        del made.headers[name]  # the user's client adds its own headers
    return made


class _Transport(httpx.AsyncBaseTransport):
    """An httpx transport that sends requests through an httpx2 client, and never closes that client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._httpx2: Any = sys.modules["httpx2"]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        own = (b"host", b"content-length")
        asked = self._client.build_request(
            request.method,
            str(request.url),
            content=await request.aread() or None,
            headers=[(name, value) for name, value in request.headers.raw if name.lower() not in own],
            timeout=self._httpx2.Timeout(**request.extensions["timeout"]),
        )
        try:
            answer = await self._client.send(asked, stream=True, follow_redirects=False)
        except self._httpx2.HTTPError as error:
            raise _translated(error) from error
        except self._httpx2.InvalidURL as error:
            raise httpx.InvalidURL(str(error)) from error
        coded = (b"content-encoding", b"content-length")  # left out, because httpx2 has decoded the body
        headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in coded]
        return httpx.Response(answer.status_code, headers=headers, stream=_Httpx2Body(answer, self._httpx2.HTTPError))


class _Httpx2Body(httpx.AsyncByteStream):
    """The body of an httpx2 answer, as it arrives."""

    def __init__(self, answer: Any, errors: type[Exception]) -> None:
        self._answer = answer
        self._errors = errors

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._answer.aiter_bytes():
                yield part
        except self._errors as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


def _translated(error: Exception) -> httpx.TransportError:
    """Convert an httpx2 error to the httpx error with the same name."""
    for kind in type(error).__mro__:
        found: object = getattr(httpx, kind.__name__, None)
        if isinstance(found, type) and issubclass(found, httpx.TransportError):
            return found(str(error))
    return httpx.TransportError(str(error))
