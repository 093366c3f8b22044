"""HTTP requests to one server: JSON answers and streams of events, with retries and limits.

A `Transport` makes one client for each event loop at its first use, and turns every failure into an error of
`cosd_providers.errors`. Keys appear in no representation, log, copy or error, and follow no redirect.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Self

import anyio
import httpx
from anyio.lowlevel import current_token

from cosd_providers.errors import InvalidRequestError
from cosd_providers.http.answers import HttpAnswer
from cosd_providers.http.errors import FIXED_WAIT, Errors
from cosd_providers.http.httpx2_client import behind_httpx, is_httpx2
from cosd_providers.http.keys import checked_headers, checked_url, only_keys
from cosd_providers.http.limits import Limiter, Limits, Slot
from cosd_providers.http.propagation import trace_headers
from cosd_providers.http.retries import until_answered
from cosd_providers.http.stack import carrier, stack
from cosd_providers.http.streams import events, read
from cosd_providers.usage import Usage

__all__ = ["DEFAULT_TIMEOUT", "FEW_IDLE", "MANY_IDLE", "HttpClient", "Timeout", "Transport"]

HttpClient = httpx.AsyncClient
Timeout = float | httpx.Timeout

DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0, pool=None)
"""Seconds: 5 to connect, 600 between two bytes of an answer; no limit on waiting for a free connection."""

FEW_IDLE = 4
"""Idle connections of a server that may have a thread for each: with a hundred of them, some requests to llama.cpp's
were seen to stall for 5 s."""

MANY_IDLE = 64
"""Idle connections of a server that has no thread for each. A new one costs as much processor time as a request does,
and over TLS several times as much."""

_SMALL = 60.0  # seconds between two bytes of an answer that the model does not generate
_QUICK = 10.0  # the same for a question of what the server is

_FAST = "cosd_providers.http.fast"  # which imports aiohttp

_log = logging.getLogger("cosd_providers")


class Transport:
    """One server over HTTP, for adapters. Copies, pickled ones too, have neither key nor headers nor client.

    Args:
        base_url: the server's URL, without credentials, query and trailing slash.
        api_key: sent as a bearer token, to this server alone; white space around it is ignored.
        headers: sent with every request.
        timeout: seconds for each of connecting (at most 5), writing, and waiting for bytes (at most 60 where nothing
            is generated), or an `httpx.Timeout`.
        http_client: used as it is, with its own timeouts unless `timeout` is given, and never closed. An
            `httpx2.AsyncClient` will do, too.
        limits: the server's rate limits, see `limits.Limits`; none by default.
        idle: connections kept for later requests, at most.

    Attributes:
        endpoint: the server's URL.
        http_client: the user's own client, if one was given; that of httpx2 behind httpx's interface.

    Raises:
        ValueError: the URL, the key or a header cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        http_client: HttpClient | None = None,
        limits: Limits | None = None,
        idle: int = FEW_IDLE,
    ) -> None:
        self.endpoint = checked_url(base_url)
        self.http_client = behind_httpx(http_client) if is_httpx2(http_client) else http_client
        self._headers = checked_headers(api_key, headers)
        try:
            port = httpx.Request("GET", base_url).url.port or 0
        except (httpx.InvalidURL, ValueError):
            port = -1
        if not 0 <= port < 2**16:
            raise ValueError("the URL cannot be read; expected http://HOST:PORT or https://HOST")
        theirs = only_keys(http_client.headers) if http_client is not None else {}
        self._errors = Errors(base_url, {**theirs, **self._headers})
        self._own_timeout = http_client is not None and timeout is DEFAULT_TIMEOUT
        if not isinstance(timeout, httpx.Timeout):
            timeout = httpx.Timeout(timeout, connect=min(timeout, 5.0), pool=None)
        self._timeout = timeout
        self._clients = _Clients(timeout, idle)
        self._limiter = Limiter(limits)
        if http_client is None and carrier() != "httpx":
            import_module(_FAST)  # now: it would take longer than a request does
        self._urls: dict[str, httpx.URL] = {}  # by route: parsing one takes as long as sending a request

    def __repr__(self) -> str:
        return f"Transport({self.endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but keys, other headers' values and connections."""
        gone: dict[str, Any] = {"http_client": None, "_own_timeout": False, "_headers": {}}
        fresh = {
            "_errors": Errors(self.endpoint),
            "_clients": _Clients(self._timeout, self.idle),
            "_limiter": Limiter(self.limits),
        }
        return {**self.__dict__, **gone, **fresh}

    @property
    def idle(self) -> int:
        """Connections kept for later requests, at most. httpx alone takes a change with its next client only."""
        return self._clients.idle

    @idle.setter
    def idle(self, count: int) -> None:
        self._clients.idle = count

    @property
    def sent(self) -> int:
        """Number of generation requests sent so far."""
        return self._limiter.sent

    @property
    def limits(self) -> Limits:
        """The limits of this server."""
        return self._limiter.limits

    async def __aenter__(self) -> Self:
        self._clients.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections when the last user leaves; a later request opens new ones."""
        await self._clients.leave()

    async def get(self, path: str, *, once: bool = False, quick: bool = False) -> Any:
        """GET a route; its parsed JSON answer.

        Args:
            path: the route.
            once: do not retry: for a route that may not exist.
            quick: give up after ten seconds without an answer.
        """
        return await self._whole(_Call("GET", path, once=once, quick=quick))

    async def post(self, path: str, body: object, *, usage: Usage | None = None) -> Any:
        """POST JSON; its parsed JSON answer. With `usage` it counts there as a generation request."""
        return await self._whole(_Call("POST", path, body, usage))

    @asynccontextmanager
    async def stream(
        self, path: str, body: object, *, usage: Usage, keep_alive: bool = True, attempt: int = 0, draft: bool = True
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """POST JSON; the parsed events of the answer, server-sent or one on each line. Leaving the block closes it.

        The events end where the server's do, or at `[DONE]`; whether the answer is complete, the adapter knows.

        Args:
            path: the route.
            body: what is sent, as JSON.
            usage: where it counts.
            keep_alive: False for servers that close the connection after a stream. (Ignored with a user's client,
                which may speak HTTP/2, where this does not exist.)
            attempt: the number of the attempt of a caller that retries by itself (`retries.resumed`). With 0 the
                request is retried here until an answer begins.
            draft: whether the reader may wait for other requests before it reads on (`limits`).
        """
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if not keep_alive and self.http_client is None:
            headers["Connection"] = "close"
        call = _Call("POST", path, body, usage, headers, stream=True, draft=draft, once=attempt > 0, again=attempt > 1)
        async with (
            self._open(call) as (response, _, slot),
            aclosing(events(response, self._errors, usage, slot)) as found,
        ):
            yield found

    async def _whole(self, call: _Call) -> Any:
        async with self._open(call) as (_, answer, _):
            if call.usage is not None:
                call.usage.answered(time.monotonic())
            return answer

    @asynccontextmanager
    async def _open(self, call: _Call) -> AsyncGenerator[tuple[HttpAnswer, Any, Slot]]:
        """Send a request, count it, and close it when left. The answer is parsed already, unless it is a stream."""
        usage = call.usage
        async with self._limiter.slot(usage, draft=call.draft) as slot:
            if usage is not None:
                await self._limiter.admit(usage)
                usage.sent(time.monotonic())
                if call.again:  # it is an attempt of a request that was counted
                    usage.requests -= 1
                    usage.retries += 1
            try:
                async with self._answered(call) as (response, answer):
                    yield response, answer, slot
            finally:
                if usage is not None:
                    usage.closed(time.monotonic())

    @asynccontextmanager
    async def _answered(self, call: _Call) -> AsyncGenerator[tuple[HttpAnswer, Any]]:
        start = time.monotonic()
        response, answer = await self._send_until_answered(call)
        waited = time.monotonic() - start
        try:
            yield response, answer
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
            took = time.monotonic() - start
            where = f"{call.method} {self.endpoint}{call.path}"
            _log.debug("%s: %d after %.3f s, closed after %.3f s", where, response.status_code, waited, took)

    async def _send_until_answered(self, call: _Call) -> tuple[HttpAnswer, Any]:
        """Send, and retry what may succeed later. Nothing of an answer has been used yet."""
        if call.once:
            return await self._send(call)

        async def attempt(number: int) -> tuple[HttpAnswer, Any]:
            if number > 1 and call.usage is not None:
                await self._limiter.admit(call.usage)
            return await self._send(call)

        def again(error: BaseException | None) -> None:
            _log.info("%s %s%s: again after %s", call.method, self.endpoint, call.path, type(error).__name__)
            if call.usage is not None:
                call.usage.sent_again()

        return await until_answered(attempt, again, few=1 if call.quick else 2)

    async def _send(self, call: _Call) -> tuple[HttpAnswer, Any]:
        response: HttpAnswer | None = None
        try:
            client = self.http_client or self._clients.get()
            response = await self._sent(client, call)
        except httpx.LocalProtocolError:
            pass  # it quotes headers: raised here, the new error would carry it as its context
        except (httpx.HTTPError, OSError) as error:
            raise self._errors.connection(error) from error
        except httpx.InvalidURL as error:  # ours is valid, so the server redirects to it
            raise self._errors.redirected() from error
        except RuntimeError as error:
            raise self._errors.unusable_client(error) from error
        if response is None:
            words = "the request is not valid HTTP and was not sent"
            raise self._errors.make(InvalidRequestError, words, hint="Check the headers.")
        if call.stream and response.is_success:
            return response, None
        try:
            text = await read(response, self._errors)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
        if response.is_success:
            return response, self._errors.parsed(response, text, generated=call.usage is not None)
        raise self._errors.refusal(response, text)

    async def _sent(self, client: HttpClient, call: _Call) -> HttpAnswer:
        timeout = client.timeout if self._own_timeout else self._timeout
        wait = _QUICK if call.quick else _SMALL if call.usage is None else math.inf
        extensions: dict[str, bool] = {}
        if wait < (timeout.read or math.inf):
            extensions = {FIXED_WAIT: True}
            timeout = httpx.Timeout(connect=timeout.connect, read=wait, write=timeout.write, pool=timeout.pool)
        url = self._urls[call.path] = self._urls.get(call.path) or httpx.URL(self.endpoint + call.path)
        own: Any = None if client is self.http_client else getattr(client, "ask", None)
        ask: Callable[..., Awaitable[HttpAnswer]] = own or partial(_ask, client)
        with suppress(UnicodeEncodeError):  # which holds the whole body
            return await ask(
                call.method, url, body=call.body, headers=self._sent_with(call), timeout=timeout, extensions=extensions
            )
        words = "the text has half a surrogate pair, which is not a character and cannot be sent"
        raise self._errors.make(InvalidRequestError, words, hint="Read it with errors='replace'.")

    def _sent_with(self, call: _Call) -> Mapping[str, str]:
        """The headers of a request; one of the user's own goes before that of a trace."""
        traced = trace_headers()
        if not traced:
            return {**self._headers, **(call.headers or {})}
        headers = httpx.Headers(traced)
        headers.update({**self._headers, **(call.headers or {})})
        return headers


async def _ask(client: HttpClient, method: str, url: httpx.URL, *, body: object, **options: Any) -> httpx.Response:
    """Send a request with a client of httpx."""
    request = client.build_request(method, url, json=body, **options)
    return await client.send(request, stream=True, follow_redirects=False)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request.

    Attributes:
        method: GET or POST.
        path: the route.
        body: what is sent, as JSON.
        usage: where it counts, if the model generates something.
        headers: sent beside those of every request.
        stream: whether the answer is read as it arrives.
        draft: whether the reader of the stream may wait for other requests.
        once: whether it is never retried.
        again: whether it is itself a retry.
        quick: whether to give up soon.
    """

    method: str
    path: str
    body: object = None
    usage: Usage | None = None
    headers: Mapping[str, str] | None = None
    stream: bool = False
    draft: bool = False
    once: bool = False
    again: bool = False
    quick: bool = False


class _Clients:
    """A client for each event loop, closed when its last user leaves."""

    def __init__(self, timeout: httpx.Timeout, idle: int) -> None:
        self.idle = idle
        self._timeout = timeout
        self._clients: dict[object, HttpClient] = {}
        self._users: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self) -> None:
        """Count a user in this event loop."""
        loop = current_token()
        self._users[loop] = self._users.get(loop, 0) + 1

    async def leave(self) -> None:
        """A user leaves; the last one closes the client."""
        loop = current_token()
        self._users[loop] -= 1
        if not self._users[loop]:
            del self._users[loop]
            client = self._clients.pop(loop, None)
            if client is not None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    def get(self) -> HttpClient:
        """The client of this event loop, made at its first use."""
        loop = current_token()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            client = self._clients[loop] = self._new()
        return client

    def _new(self) -> HttpClient:
        """A client for the running event loop.

        Raises:
            OSError: the certificates that `SSL_CERT_FILE` names cannot be read.
        """
        _log.debug("HTTP by %s", stack())
        if carrier() == "httpx":
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.idle)
            return httpx.AsyncClient(timeout=self._timeout, limits=limits)
        client: HttpClient = import_module(_FAST).FastClient(self._timeout, lambda: self.idle)
        return client
