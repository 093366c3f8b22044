"""HTTP requests to one server: JSON answers and streams of events, with retries and limits.

A `Transport` creates a client for each event loop when it is first used in that loop, and turns every failure into an
error of `cosd_providers.errors`. Keys do not appear in any `repr`, log, copy or error, and are not sent to the target
of a redirect.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import anyio
import httpx
from pydantic_core import PydanticSerializationError, to_json

from cosd_providers.errors import InvalidRequestError, ProviderError
from cosd_providers.http.answers import HttpAnswer
from cosd_providers.http.clients import HttpClients, ask
from cosd_providers.http.failures import FIXED_WAIT, Errors, is_no_http
from cosd_providers.http.keys import checked_headers, checked_url, only_keys
from cosd_providers.http.limits import Limiter, Limits, Slot
from cosd_providers.http.retries import overcome, until_answered
from cosd_providers.http.streams import events, read
from cosd_providers.usage import Usage

HttpClient = httpx.AsyncClient
Timeout = float | httpx.Timeout

DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0, pool=None)
"""Up to 5 seconds to connect, up to 600 seconds between two bytes, and no limit on the wait for a free connection."""

FEW_IDLE = 4
"""Number of idle connections to keep if the server may use a thread for each connection.

With a hundred idle connections, some requests to llama.cpp's server stalled for 5 s in our tests.
"""

MANY_IDLE = 64
"""Number of idle connections to keep if the server does not use a thread for each connection.

Opening a connection takes as much processor time as a request, and several times as much with TLS.
"""

_SMALL = 60.0  # maximum number of seconds between two bytes of an answer that the model does not generate
_QUICK = 10.0  # maximum number of seconds between two bytes of an answer that identifies the server

_parsed_url = lru_cache(256)(httpx.URL)  # parsing a URL takes as long as sending a request

_strict = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode  # as httpx does

_log = logging.getLogger("cosd_providers")


class Transport:
    """HTTP requests to one server, for adapters.

    Copies, including pickled copies, contain neither keys nor headers nor a client.

    Args:
        base_url: the server's URL, without credentials, query or trailing slash.
        api_key: key that is sent as a bearer token, only to this server. White space around it is ignored.
        headers: headers that are sent with every request.
        timeout: an `httpx.Timeout`; or a number of seconds that limits connecting (to at most 5 seconds), writing, and
            the wait for bytes. For requests for which the model generates nothing, the wait is at most 60 seconds.
        http_client: an `httpx.AsyncClient`, which is used unchanged and never closed. Its own timeouts apply unless
            `timeout` is given.
        limits: the server's rate limits; see `limits.Limits`. None by default.
        idle: maximum number of idle connections to keep.

    Attributes:
        http_client: the user's own client, if one was given.

    Raises:
        ValueError: the URL, the key or a header is invalid.
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
        self.http_client = http_client
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
        self._clients = HttpClients(base_url, timeout, idle)
        self._limiter = Limiter(limits)
        if http_client is None:
            HttpClients.prepare()

    def __repr__(self) -> str:
        return f"Transport({self.endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies, without keys, headers and connections."""
        gone: dict[str, Any] = {"http_client": None, "_own_timeout": False, "_headers": {}}
        fresh = {
            "_errors": Errors(self.endpoint),
            "_clients": HttpClients(self.endpoint, self._timeout, self.idle),
            "_limiter": Limiter(self.limits),
        }
        return {**self.__dict__, **gone, **fresh}

    @property
    def idle(self) -> int:
        """Maximum number of idle connections to keep. With a proxy, a change applies only to the next client."""
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
        """The rate limits of this server."""
        return self._limiter.limits

    async def __aenter__(self) -> Self:
        self._clients.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections when the last user has left. A later request opens new connections."""
        await self._clients.leave()

    async def get(self, path: str, *, once: bool = False, quick: bool = False) -> Any:
        """GET a route and return the parsed JSON answer.

        Args:
            path: the route.
            once: whether to send the request only once, because the route may not exist.
            quick: whether to give up after ten seconds without an answer.
        """
        return await self._whole(_Call("GET", path, once=once, quick=quick))

    async def post(self, path: str, body: object, *, usage: Usage | None = None) -> Any:
        """POST JSON and return the parsed JSON answer. If `usage` is given, it counts the request as a generation."""
        return await self._whole(_Call("POST", path, body, usage))

    @asynccontextmanager
    async def stream(
        self, path: str, body: object, *, usage: Usage, keep_alive: bool = True, attempt: int = 0, draft: bool = True
    ) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        """POST JSON and provide an iterator over the parsed events of the answer: server-sent events, or one per line.

        Leaving the block closes the answer. The events end when the stream ends, or at `[DONE]`; the adapter decides
        whether the answer is complete.

        Args:
            path: the route.
            body: the data to send, as JSON.
            usage: the record that counts the request.
            keep_alive: False for servers that close the connection after a stream. This option is ignored with a user's
                client, which may use HTTP/2, where it does not exist.
            attempt: the number of the attempt, counted from 1, if the caller itself retries (`retries.resumed`). If
                this is 0, the method retries the request until an answer begins.
            draft: whether the reader may wait for other requests before it continues to read (see `limits`).
        """
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if not keep_alive and self.http_client is None:
            headers["Connection"] = "close"
        call = _Call("POST", path, body, usage, headers, stream=True, draft=draft, once=attempt > 0, again=attempt > 1)
        async with self._answered(call) as (response, _, slot):
            found = events(response, self._errors, usage, slot)
            try:
                yield found
            finally:
                await found.aclose()

    async def _whole(self, call: _Call) -> Any:
        async with self._answered(call) as (_, answer, _):
            if call.usage is not None:
                call.usage.answered(time.monotonic())
            return answer

    @asynccontextmanager
    async def _answered(self, call: _Call) -> AsyncGenerator[tuple[HttpAnswer, Any, Slot | None]]:
        """Send a request, count it, and provide the answer, its JSON unless it is a stream, and the request's slot."""
        usage, slot = call.usage, None
        with ExitStack() as ending:
            if usage is not None:
                slot = await self._limiter.enter(usage, draft=call.draft)
                if slot is not None:
                    ending.callback(slot.leave)
                await self._limiter.admit(usage)
                usage.sent(time.monotonic())
                ending.callback(lambda: usage.closed(time.monotonic()))
                if call.again:  # the first attempt has already counted the request
                    usage.requests -= 1
                    usage.retries += 1
            start = time.monotonic()
            response, answer = await self._send_until_answered(call)
            waited = time.monotonic() - start
            if usage is not None:  # an encoding says nothing about a generation that is being retried
                overcome(self.endpoint)
            try:
                yield response, answer, slot
            finally:
                await _close(response)
                where = f"{call.method} {self.endpoint}{call.path}: {response.status_code}"
                _log.debug("%s after %.3f s, closed after %.3f s", where, waited, time.monotonic() - start)

    async def _send_until_answered(self, call: _Call) -> tuple[HttpAnswer, Any]:
        """Send a request, and retry it after temporary failures, as long as no part of an answer has been used."""
        if call.once:
            return await self._send(call)

        async def attempt(number: int) -> tuple[HttpAnswer, Any]:
            if number > 1 and call.usage is not None:
                await self._limiter.admit(call.usage)
            return await self._send(call)

        def again(error: ProviderError) -> None:
            _log.info("%s %s%s: again after %s", call.method, self.endpoint, call.path, type(error).__name__)
            if call.usage is not None:
                call.usage.sent_again()

        return await until_answered(attempt, again, few=1 if call.quick else 2)

    async def _send(self, call: _Call) -> tuple[HttpAnswer, Any]:
        response: HttpAnswer | None = None
        failure: ProviderError | None = None
        try:
            response = await self._sent(call)
        except httpx.LocalProtocolError:
            words = "the request is not valid HTTP and was not sent"
            failure = self._errors.make(InvalidRequestError, words, hint="Check the headers.")
        except (httpx.HTTPError, OSError) as error:
            failure = self._errors.connection(error)
            if not is_no_http(error):
                raise failure from error
        except httpx.InvalidURL as error:  # the request's URL is valid, so the server redirects to an invalid URL
            raise self._errors.redirected() from error
        except RuntimeError as error:
            raise self._errors.unusable_client(error) from error
        if failure is not None:  # raised outside the blocks above, so that its context quotes no headers and no answer
            raise failure
        assert response is not None
        if call.stream and response.is_success:
            return response, None
        try:
            text = await read(response, self._errors)
        finally:
            await _close(response)
        if response.is_success:
            return response, self._errors.parsed(response, text, generated=call.usage is not None)
        raise self._errors.refusal(response, text)

    async def _sent(self, call: _Call) -> HttpAnswer:
        theirs = self.http_client
        client = self._clients.get() if theirs is None else theirs
        timeout = theirs.timeout if theirs is not None and self._own_timeout else self._timeout
        wait = _QUICK if call.quick else _SMALL if call.usage is None else math.inf
        extensions: dict[str, bool] = {}
        if wait < (timeout.read or math.inf):
            extensions = {FIXED_WAIT: True}
            timeout = httpx.Timeout(connect=timeout.connect, read=wait, write=timeout.write, pool=timeout.pool)
        content: bytes | None = None
        with suppress(UnicodeEncodeError):  # it contains the whole body, so another error is raised outside this block
            content = b"" if call.body is None else encoded(call.body)
        if content is None:
            words = "the text has half a surrogate pair, which is not a character and cannot be sent"
            raise self._errors.make(InvalidRequestError, words, hint="Read it with errors='replace'.")
        headers = {**self._headers, **(call.headers or {})}
        if traced := trace_headers():
            headers = {**httpx.Headers(traced), **httpx.Headers(headers)}
        url = _parsed_url(self.endpoint + call.path)
        return await ask(
            client, call.method, url, content=content, headers=headers, timeout=timeout, extensions=extensions
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A request."""

    method: str
    path: str
    body: object = None  # the data to send, as JSON
    usage: Usage | None = None  # the record that counts the request; None if the model generates nothing
    headers: Mapping[str, str] | None = None  # further headers of this request
    stream: bool = False  # whether the answer is read as it arrives
    draft: bool = False  # whether the reader of the stream may wait for other requests
    once: bool = False  # whether the request must not be retried
    again: bool = False  # whether the request is itself a retry
    quick: bool = False  # whether to give up after ten seconds without an answer


async def _close(response: HttpAnswer) -> None:
    """Close an answer, even if the caller is being cancelled."""
    if not isinstance(response, httpx.Response):
        await response.aclose()  # needs no shield, because this method does not wait
    elif not response.is_closed:
        with anyio.CancelScope(shield=True):
            await response.aclose()


def encoded(body: object) -> bytes:
    """Encode a body of dictionaries, lists and scalars as JSON in UTF-8. Other types are not always refused.

    Raises:
        UnicodeEncodeError: a string contains an unpaired surrogate.
        ValueError: a number is not finite.
        TypeError: JSON cannot represent a value.
    """
    try:
        content = to_json(body)  # takes a fifth of the time that `_strict` takes
    except PydanticSerializationError:
        return _strict(body).encode()
    if b"NaN" in content or b"Infinity" in content:  # these may also be part of a string, so `_strict` decides
        return _strict(body).encode()
    return content


def trace_headers() -> dict[str, str]:
    """Return W3C's header `traceparent`, with which a server continues the caller's trace; empty without a span.

    OpenTelemetry's configured propagators (`OTEL_PROPAGATORS`) supply the headers. OpenTelemetry is used only if the
    application itself has imported it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra

    headers: dict[str, str] = {}
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)
    return headers
