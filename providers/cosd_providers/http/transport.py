"""HTTP: the only module that knows the client library.

One `Transport` is one server. It makes its client when first used, one per event loop; tries again what was
not answered; turns everything that goes wrong into the tree of `errors`; and keeps keys to itself: they are
in no representation, no log, no copy and no error, and they never follow a redirect.
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Self, cast

import anyio
import httpx
from httpx_sse import EventSource

from cosd_providers.errors import InvalidRequestError, ProviderError
from cosd_providers.http.bodies import LINES, LONGEST, LONGEST_ERROR, Measured, beginning, lines
from cosd_providers.http.calls import Call, under_way
from cosd_providers.http.clients import Clients
from cosd_providers.http.events import parsed
from cosd_providers.http.failures import broken, hung_up, no_connection, timed_out, too_long, unusable
from cosd_providers.http.keys import checked_headers, checked_url, only_keys
from cosd_providers.http.limits import Limiter, Limits, Slot
from cosd_providers.http.refusals import Errors
from cosd_providers.http.retries import until_answered
from cosd_providers.usage import Usage

__all__ = ["DEFAULT_TIMEOUT", "HttpClient", "Timeout", "Transport"]

HttpClient = httpx.AsyncClient
Timeout = float | httpx.Timeout

DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0, pool=None)
"""Seconds: 5 to connect, 600 between two bytes of an answer; none to wait for a free connection."""

# Few idle connections: with a hundred of them, some requests to llama.cpp's server were seen to stall for 5 s.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=4)

_SMALL = 60.0  # seconds between two bytes of an answer for which nothing has to be generated
_QUICK = 10.0  # the same where the server is only asked what it is

_HUNG_UP = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)

_WAITED = {
    "connect": httpx.ConnectTimeout,
    "pool": httpx.PoolTimeout,
    "write": httpx.WriteTimeout,
    "read": httpx.TimeoutException,
}

_log = logging.getLogger("cosd_providers")


class Transport:
    """One server over HTTP; for adapters. Copies of it, pickled ones too, have neither key nor headers nor client.

    Args:
        base_url: the server's URL, without credentials, query and trailing slash.
        api_key: sent as a bearer token, to this server alone; white space around it does no harm.
        headers: sent with every request.
        timeout: seconds for each of connecting (at most 5), writing and waiting for bytes (where nothing is
            generated, at most 60), or an `httpx.Timeout`.
        http_client: used as it is, with its own timeouts unless `timeout` is given, and never closed.
        limits: what the server may be sent at most, see `limits.Limits`; by default there is no limit.

    Attributes:
        endpoint: the server's URL.
        http_client: the user's own client; None where a client is made here.

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
    ) -> None:
        self.endpoint = checked_url(base_url)
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
        self.http_client = http_client
        self._clients: Clients[HttpClient] = Clients()
        self._limiter = Limiter(limits)
        self._urls: dict[str, httpx.URL] = {}  # by route: to read one takes as long as to send a request

    def __repr__(self) -> str:
        return f"Transport({self.endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but keys, other headers' values and connections."""
        gone: dict[str, Any] = {
            "_headers": {},
            "_errors": Errors(self.endpoint),
            "http_client": None,
            "_own_timeout": False,
        }
        fresh = {"_clients": Clients[HttpClient](), "_limiter": Limiter(self._limiter.limits)}
        return {**self.__dict__, **gone, **fresh}

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
        """Closes the connections when the last user leaves; a later request opens new ones."""
        await self._clients.leave()

    async def get(self, path: str, *, once: bool = False, quick: bool = False) -> Any:
        """The parsed JSON answer to a GET.

        With `once` it is not tried again: for a route that is perhaps not there. A `quick` one is given up after ten
        seconds without an answer.
        """
        return await self._whole(Call("GET", path, once=once, quick=quick))

    async def post(self, path: str, body: object, *, usage: Usage | None = None) -> Any:
        """The parsed JSON answer to a POST. With `usage` it is counted there as a generation request."""
        return await self._whole(Call("POST", path, body, usage))

    async def _whole(self, call: Call) -> Any:
        async with self._open(call) as (_, answer, _):
            if call.usage is not None:
                call.usage.answered(time.monotonic())
            return answer

    @asynccontextmanager
    async def stream(
        self, path: str, body: object, *, usage: Usage, keep_alive: bool = True, attempt: int = 0, draft: bool = True
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """The answer to a POST as parsed events, server-sent or one on each line. Leaving the block closes the request.

        The events end where the server's do, or at `[DONE]`; whether that was the answer's end, the adapter knows.
        Without `keep_alive` the connection is not used again: for servers that close it after a stream. (A user's
        client may speak HTTP/2, which knows no such thing.)

        It is tried again until an answer begins, unless `attempt` is above 0: then it is that attempt of a caller who
        tries again (`retries.resumed`). What is no `draft` is read without waiting for other requests (`limits`).
        """
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if not keep_alive and self.http_client is None:
            headers["Connection"] = "close"
        tries = {"once": attempt > 0, "again": attempt > 1}
        call = Call("POST", path, body, usage, headers, stream=True, draft=draft, **tries)
        async with (
            self._open(call) as (response, _, slot),
            aclosing(self._events(response, usage, slot)) as events,
        ):
            yield events

    async def _events(self, response: httpx.Response, usage: Usage, slot: Slot) -> AsyncGenerator[dict[str, Any]]:
        kind = response.headers.get("content-type", "")
        if not kind.startswith(("text/event-stream", LINES)):
            raise self._errors.no_stream(response, await self._read(response))
        response.encoding = "utf-8"  # as events always are
        text = Measured(response)
        source = lines(text) if kind.startswith(LINES) else _sent(text)
        try:
            async with aclosing(parsed(source, text, self._errors, response, usage, slot)) as events:
                async for event in events:
                    yield event
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise self._failure(error, answered=True) from error

    @asynccontextmanager
    async def _open(self, call: Call) -> AsyncGenerator[tuple[httpx.Response, Any, Slot]]:
        """A request that was answered with success, and what it says, but for a stream; closed when left."""
        async with under_way(call, self._limiter) as slot:
            start = time.monotonic()
            response, answer = await self._send_until_answered(call)
            waited = time.monotonic() - start
            try:
                yield response, answer, slot
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
                took = time.monotonic() - start
                where = f"{call.method} {self.endpoint}{call.path}"
                _log.debug("%s: %d after %.3f s, closed after %.3f s", where, response.status_code, waited, took)

    async def _send_until_answered(self, call: Call) -> tuple[httpx.Response, Any]:
        """Sends, and sends again what may succeed later, as long as nothing of an answer was used."""
        if call.once:
            return await self._send(call)

        async def attempt(number: int) -> tuple[httpx.Response, Any]:
            if number > 1 and call.usage is not None:
                await self._limiter.admit(call.usage)
            return await self._send(call)

        def again(error: BaseException | None) -> None:
            _log.info("%s %s%s: again after %s", call.method, self.endpoint, call.path, type(error).__name__)
            if call.usage is not None:
                call.usage.sent_again()

        return await until_answered(attempt, again, few=1 if call.quick else 2)

    async def _send(self, call: Call) -> tuple[httpx.Response, Any]:
        response: httpx.Response | None = None
        try:
            client = self._client()
            request = self._request(client, call)
            response = await client.send(request, stream=True, follow_redirects=False)
        except httpx.LocalProtocolError:
            pass  # it quotes headers: nothing of it may be seen, and none of what is raised here may remember it
        except (httpx.HTTPError, OSError) as error:
            raise self._failure(error, answered=False) from error
        except httpx.InvalidURL as error:  # ours is none, so that it is where the server redirects to
            raise self._errors.redirected() from error
        except RuntimeError as error:
            raise unusable(self._errors, error) from error
        if response is None:
            words = "the request is not valid HTTP and was not sent"
            raise self._errors.make(InvalidRequestError, words, hint="Check the headers.")
        if call.stream and response.is_success:
            return response, None
        try:
            text = await self._read(response)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
        if response.is_success:
            return response, self._errors.parsed(response, text, generated=call.usage is not None)
        raise self._refusal(response, text)

    def _request(self, client: HttpClient, call: Call) -> httpx.Request:
        timeout = client.timeout if self._own_timeout else self._timeout
        read = _QUICK if call.quick else _SMALL if call.usage is None else math.inf
        if read < (timeout.read or math.inf):
            timeout = httpx.Timeout(connect=timeout.connect, read=read, write=timeout.write, pool=timeout.pool)
        with suppress(UnicodeEncodeError):  # which holds the whole body
            headers = {**self._headers, **(call.headers or {})}
            url = self._urls[call.path] = self._urls.get(call.path) or httpx.URL(self.endpoint + call.path)
            return client.build_request(call.method, url, json=call.body, headers=headers, timeout=timeout)
        words = "the text has half a surrogate pair, which is no character and cannot be sent"
        raise self._errors.make(InvalidRequestError, words, hint="Read it with errors='replace'.")

    def _client(self) -> HttpClient:
        """The user's client, or this loop's own, made when first needed."""
        if self.http_client is not None:
            return self.http_client
        return self._clients.of_this_loop(lambda: httpx.AsyncClient(timeout=self._timeout, limits=_LIMITS))

    async def _read(self, response: httpx.Response) -> str:
        """The whole answer; where it is no success, its beginning."""
        try:
            text, whole = await beginning(response, LONGEST if response.is_success else LONGEST_ERROR)
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise self._failure(error, answered=True) from error
        if response.is_success and not whole:
            raise too_long(self._errors, response)
        return text

    def _failure(self, error: Exception, *, answered: bool) -> ProviderError:
        """The connection failed: before anything of an answer came, or in the middle of it."""
        if isinstance(error, httpx.TimeoutException):
            what = next(what for what, kind in _WAITED.items() if isinstance(error, kind))
            limit = error.request.extensions.get("timeout", {}).get(what)
            ours = limit in (_QUICK, _SMALL) and limit != self._timeout.read
            return timed_out(self._errors, what, limit, answered=answered, ours=ours)
        if answered:
            return broken(self._errors)
        if isinstance(error, _HUNG_UP):
            return hung_up(self._errors)
        return no_connection(self._errors, error, lasting=isinstance(error, httpx.UnsupportedProtocol))

    def _refusal(self, response: httpx.Response, text: str) -> ProviderError:
        """The server answered, but not with success."""
        if response.has_redirect_location:
            return self._errors.redirected(response)
        return self._errors.refusal(response, text)


async def _sent(text: Measured) -> AsyncGenerator[str]:
    """What server-sent events hold."""
    events = EventSource(cast("httpx.Response", text)).aiter_sse()  # which asks it for headers and text alone
    async with aclosing(events):
        async for event in events:
            yield event.data
