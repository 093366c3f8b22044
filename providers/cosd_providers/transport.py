"""HTTP: the only module that knows the client library.

One `Transport` is one server. It makes its client when first used, one per event loop; tries again what was
not answered; turns everything that goes wrong into the tree of `errors`; and keeps keys to itself: they are
in no representation, no log, no pickle and no error, and they never follow a redirect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Self

import anyio
import httpx
from anyio.lowlevel import current_token
from httpx_sse import EventSource
from pydantic_core import from_json

from cosd_providers.contract import Usage
from cosd_providers.errors import ConnectError, ProviderError, ProviderTimeoutError, ResponseError, StatusError
from cosd_providers.refusals import Errors, event_status
from cosd_providers.retries import until_answered

__all__ = ["DEFAULT_TIMEOUT", "HttpClient", "Timeout", "Transport"]

HttpClient = httpx.AsyncClient
Timeout = float | httpx.Timeout

DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0, pool=None)
"""Seconds: 5 to connect, 600 between two bytes of an answer; none to wait for a free connection."""

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)

_HUNG_UP = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)

_log = logging.getLogger("cosd_providers")


class Transport:
    """One server over HTTP; for adapters.

    Args:
        base_url: the server's URL, without credentials, query and trailing slash.
        api_key: sent as a bearer token, to this server alone.
        headers: sent with every request.
        timeout: seconds for each of connecting (at most 5), writing and waiting for bytes, or an
            `httpx.Timeout`.
        http_client: used as it is, with its own timeouts unless `timeout` is given, and never closed.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        http_client: HttpClient | None = None,
    ) -> None:
        self.endpoint = base_url
        self._headers = dict(headers or {})
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        for name, value in self._headers.items():
            if not (value.isascii() and value.isprintable()):
                raise ValueError(f"the value of the header {name!r} has characters that cannot be sent")
        secrets = (api_key, *(headers or {}).values())
        struck = [secret for secret in secrets if secret and len(secret) > 3]
        self._errors = Errors(base_url, struck, with_key="Authorization" in self._headers)
        self._own_timeout = http_client is not None and timeout is DEFAULT_TIMEOUT
        if not isinstance(timeout, httpx.Timeout):
            timeout = httpx.Timeout(timeout, connect=min(timeout, 5.0), pool=None)
        self._timeout = timeout
        self._user_client = http_client
        self._clients: dict[object, HttpClient] = {}
        self._users: dict[object, int] = {}

    def __repr__(self) -> str:
        return f"Transport({self.endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but keys, other headers' values and connections."""
        gone: dict[str, Any] = {
            "_headers": {},
            "_errors": Errors(self.endpoint),
            "_user_client": None,
            "_clients": {},
            "_users": {},
        }
        return {**self.__dict__, **gone, "_own_timeout": False}

    async def __aenter__(self) -> Self:
        loop = current_token()
        self._users[loop] = self._users.get(loop, 0) + 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes the connections when the last user leaves; a later request opens new ones."""
        loop = current_token()
        self._users[loop] -= 1
        if not self._users[loop]:
            del self._users[loop]
            client = self._clients.pop(loop, None)
            if client is not None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def get(self, path: str) -> Any:
        """The parsed JSON answer to a GET."""
        async with self._open("GET", path) as response:
            return self._parse(response, await self._read(response))

    async def post(self, path: str, body: object, *, usage: Usage | None = None) -> Any:
        """The parsed JSON answer to a POST. With `usage` it is counted there as a generation request."""
        async with self._open("POST", path, body, usage=usage) as response:
            answer = self._parse(response, await self._read(response))
            if usage is not None:
                usage.answered(time.monotonic())
            return answer

    @asynccontextmanager
    async def stream(
        self, path: str, body: object, *, usage: Usage, keep_alive: bool = True
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """The answer to a POST as parsed server-sent events. Leaving the block closes the request.

        The events end where the server's do, or at `[DONE]`; whether that was the answer's end, the adapter knows.
        Without `keep_alive` the connection is not used again: for servers that close it after a stream. (A user's
        client may speak HTTP/2, which knows no such thing.)
        """
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if not keep_alive and self._user_client is None:
            headers["Connection"] = "close"
        async with (
            self._open("POST", path, body, usage=usage, headers=headers) as response,
            aclosing(self._events(response, usage)) as events,
        ):
            yield events

    async def _events(self, response: httpx.Response, usage: Usage) -> AsyncGenerator[dict[str, Any]]:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise self._errors.unreadable(response, await self._read(response), "a stream of events")
        first = True
        source = EventSource(response).aiter_sse()
        try:
            async with aclosing(source):
                async for item in source:
                    if item.data == "[DONE]":
                        return
                    event: dict[str, Any] | None = from_json(item.data)
                    if type(event) is not dict:  # some servers greet with null
                        continue
                    if "error" in event:
                        raise self._errors.status_error(event_status(event), event, response)
                    if first:
                        first = False
                        usage.answered(time.monotonic())
                    yield event
        except httpx.HTTPError as error:
            raise self._failure(error, answered=True) from error
        except ValueError as error:
            if isinstance(error, ProviderError):
                raise
            raise self._errors.make(ResponseError, "an event of the stream is not JSON", response) from error

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        usage: Usage | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[httpx.Response]:
        """A request that was answered with success, its body not yet read; closed when left."""
        start = time.monotonic()
        if usage is not None:
            usage.sent(start)
        try:
            response = await self._send_until_answered(method, path, body, headers, usage)
            waited = time.monotonic() - start
            try:
                yield response
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
                took = time.monotonic() - start
                where = f"{method} {self.endpoint}{path}"
                _log.debug("%s: %d after %.3f s, closed after %.3f s", where, response.status_code, waited, took)
        finally:
            if usage is not None:
                usage.closed(time.monotonic())

    async def _send_until_answered(
        self, method: str, path: str, body: object, headers: Mapping[str, str] | None, usage: Usage | None
    ) -> httpx.Response:
        """Sends, and sends again what may succeed later, as long as nothing of an answer was used."""

        def again(error: BaseException | None) -> None:
            _log.info("%s %s%s: again after %s", method, self.endpoint, path, type(error).__name__)
            if usage is not None:
                usage.retries += 1

        return await until_answered(partial(self._send, method, path, body, headers), stale=_hung_up, again=again)

    async def _send(self, method: str, path: str, body: object, headers: Mapping[str, str] | None) -> httpx.Response:
        client = self._client()
        request = client.build_request(
            method,
            self.endpoint + path,
            json=body,
            headers={**self._headers, **(headers or {})},
            timeout=httpx.USE_CLIENT_DEFAULT if self._own_timeout else self._timeout,
        )
        try:
            response = await client.send(request, stream=True, follow_redirects=False)
        except httpx.HTTPError as error:
            raise self._failure(error, answered=False) from error
        if response.is_success:
            return response
        try:
            text = await self._read(response)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
        raise self._refusal(response, text)

    def _client(self) -> HttpClient:
        """The user's client, or this loop's own, made when first needed."""
        if self._user_client is not None:
            return self._user_client
        loop = current_token()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            client = self._clients[loop] = httpx.AsyncClient(timeout=self._timeout, limits=_LIMITS)
        return client

    async def _read(self, response: httpx.Response) -> str:
        try:
            await response.aread()
        except httpx.HTTPError as error:
            raise self._failure(error, answered=True) from error
        return response.text

    def _parse(self, response: httpx.Response, text: str) -> Any:
        try:
            return from_json(text)
        except ValueError:
            raise self._errors.unreadable(response, text, "JSON") from None

    def _failure(self, error: httpx.HTTPError, *, answered: bool) -> ProviderError:
        """The connection failed: before anything of an answer came, or in the middle of it."""
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            words = f"no answer within {self._timeout.read:g} s" if self._timeout.read else "no answer in time"
            return self._errors.make(ProviderTimeoutError, words, hint="A longer `timeout` may help.")
        if answered:
            broken = self._errors.make(ResponseError, "the connection broke in the middle of the answer")
            broken.retryable = True
            return broken
        if isinstance(error, _HUNG_UP):
            return self._errors.make(ConnectError, "the server closed the connection without an answer")
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectTimeout):
            reason = f"nothing within {self._timeout.connect:g} s" if self._timeout.connect else "timeout"
        hint = "Is the server running, and is the URL right?"
        if "CERTIFICATE" in reason.upper() or "SSL" in reason.upper():
            hint = "For a private certificate set SSL_CERT_FILE or give an `http_client`."
        return self._errors.make(ConnectError, f"no connection: {reason}", hint=hint)

    def _refusal(self, response: httpx.Response, text: str) -> ProviderError:
        """The server answered, but not with success."""
        if response.has_redirect_location:
            target = response.request.url.join(response.headers["location"])
            origin = str(target.copy_with(username=None, password=None, path="/", query=None, fragment=None))
            words = f"the server redirects to {origin.rstrip('/')}; give that URL"
            return self._errors.make(StatusError, words, response)
        return self._errors.refusal(response, text)


def _hung_up(error: BaseException) -> bool:
    return isinstance(error.__cause__, _HUNG_UP)
