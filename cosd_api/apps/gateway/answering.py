"""Answers to a client, sent whole or as a stream, and cancelled if the client disconnects or the gateway stops."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from cosd_api import Fusion, FusionResult, FusionStream
from cosd_api.apps.gateway.api_errors import ApiError, api_error, cause_of
from cosd_api.apps.gateway.bodies import Asked
from cosd_api.apps.gateway.config import GatewayLimits
from cosd_api.apps.gateway.exchange import Exchange, shares_of
from cosd_api.apps.gateway.responses import AnswerForm, ResponsesForm
from cosd_api.apps.gateway.shapes import AnswerShape, ChatShape, CompletionShape, TextReader
from cosd_api.apps.gateway.upstreams import Upstreams
from cosd_api.settings import AnswerOptions
from cosd_api.types import FusedToken
from cosd_providers import BudgetError, ProviderError
from cosd_providers.http.retries import RetriedFailures, longest_wait

__all__ = ["Answering", "StopSignal"]

_log = logging.getLogger("cosd_api.apps.gateway")

_TOGETHER = 8  # maximum number of answers to one request that are written at the same time
_GRACE_SECONDS = 2.0  # to send an error after the time limit; then the answer ends, even if the client read nothing
_LEAST_SECONDS = 0.001
_WRITE_BYTES = 16_384  # size, in bytes, at which collected events are sent even if more tokens are ready
_EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}

_HEARTBEAT = b": waiting\n\n"  # a comment, which clients ignore

_Numbered: TypeAlias = tuple[int, FusedToken | FusionResult]
"""A token or the result of an answer, with the answer's index."""


class StopSignal:
    """Signal that cancels requests in progress if they take too long when the gateway stops."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._sent = False

    def send(self) -> None:
        """Cancel all requests in progress and all later requests."""
        self._sent = True
        for scope in self._scopes:
            scope.cancel()

    @asynccontextmanager
    async def cancels(self) -> AsyncGenerator[anyio.CancelScope]:
        """Run a block that is cancelled when the signal is sent."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._sent:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)


class _Silence:
    """Time limit for the next token: a cancel scope that is cancelled if no token arrives in time.

    Args:
        limits: limits of the gateway.
        began: start of the request, as `time.perf_counter()` reported it.
    """

    def __init__(self, limits: GatewayLimits, began: float) -> None:
        self._first, self._idle = limits.first_token_timeout, limits.idle_timeout
        self._heard = False
        self.scope = anyio.CancelScope()
        if self._first is not None:
            self.scope.deadline = anyio.current_time() + began + self._first - time.perf_counter()

    def heard(self) -> None:
        """Restart the clock, because a token has arrived."""
        self._heard = True
        if self._idle is not None:
            self.scope.deadline = anyio.current_time() + self._idle
        else:
            self.pause()

    def pause(self) -> None:
        """Stop the clock until `heard` is called, so that the time for sending to a slow client does not count."""
        self.scope.deadline = math.inf

    @property
    def seconds(self) -> float:
        """Time limit for the next token, beyond which it is useless to wait for a server."""
        limit = self._idle if self._heard else self._first
        return math.inf if limit is None else limit

    @property
    def error(self) -> ApiError:
        """The error that is sent if no token arrived in time."""
        if self._heard:
            words, code = f"no token came for {self._idle:g} seconds", "idle_timeout"
        else:
            words, code = f"no token came within {self._first:g} seconds", "first_token_timeout"
        return ApiError(words, status=504, kind="timeout_error", code=code)


class Answering:
    """The answers to one request, as an ASGI application.

    Args:
        fusion: the fusion that writes the answers.
        asked: the request.
        limits: limits of the gateway.
        exchange: the record of the request.
        stop: the signal that ends the request early.
        upstreams: the record of models' servers that have failed.
        complete: function that is called before the last part of the answer is sent, so that the client can send its
            next request at once.
    """

    def __init__(
        self,
        fusion: Fusion,
        asked: Asked,
        limits: GatewayLimits,
        exchange: Exchange,
        stop: StopSignal,
        upstreams: Upstreams,
        complete: Callable[[], None] = lambda: None,
    ) -> None:
        self._fusion = fusion
        self._asked = asked
        self._limits = limits
        self._exchange = exchange
        self._stop = stop
        self._upstreams = upstreams
        self._complete = complete
        self._options: AnswerOptions = asked.options_for(fusion, limits)
        kind, created = ChatShape if asked.chat else CompletionShape, int(time.time())
        self._shape: AnswerShape = kind(
            request_id=exchange.id,
            model=asked.model,
            created=created,
            logprobs=asked.logprobs,
            usage=asked.include_usage,
            ignored=asked.ignored(fusion),
        )
        self._form = AnswerForm()
        if asked.responses is not None:
            self._form = ResponsesForm(asked.responses, asked.model, created)
        self._streams: list[FusionStream] = []
        self._silence = _Silence(limits, exchange.began)
        self._writing = anyio.Lock()
        self._written = 0.0  # time of the last write
        self._started = False
        self._finished = False
        self._left = False
        self._ended = False

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answers. If the client disconnects, all requests to the models are cancelled at once."""
        exchange = self._exchange
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                try:
                    await self._respond(scope, receive, send)
                except OSError:  # some ASGI servers raise it after the client has disconnected
                    self._left = True
                finally:
                    group.cancel_scope.cancel()
        finally:
            self._over()
            for result in exchange.results:
                self._upstreams.answered(exchange.model, result)
                for warning in result.warnings:  # logged only at level debug, because a warning may name a server
                    _log.debug("%s: %s", exchange.id, warning)
            if self._left and exchange.outcome == "ok" and not self._ended:
                exchange.outcome = "disconnected"

    def _over(self) -> None:
        """Add the cost of each answer to the record, but only once, and release the request's places."""
        while self._streams:
            self._exchange.account(self._streams.pop())
        self._complete()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        """Wait until the client disconnects, then cancel everything."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        scope.cancel()

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = self._stream if self._asked.stream else self._whole
        error: ApiError | None = None
        failures = RetriedFailures()
        with anyio.move_on_after(self._limits.timeout + _GRACE_SECONDS) as late:
            async with self._stop.cancels() as stopped:
                try:
                    patience = longest_wait(lambda _: self._silence.seconds)
                    with failures.recorded(), patience, self._silence.scope as silent:
                        await write(scope, receive, send)
                    if silent.cancelled_caught:
                        last = failures.last or self._fusion.endpoints.failures.last
                        error = self._silence.error if last is None else self._failed(last)
                except Exception as failed:
                    if isinstance(failed, OSError) and not isinstance(failed, ProviderError):
                        raise  # the connection to the client failed, not the answer
                    error = self._failed(failed)
            if stopped.cancelled_caught and not self._ended:
                self._exchange.outcome = "stopped"
                words = "the gateway was stopped before the answer was complete"
                error = ApiError(words, status=503, kind="server_error", code="stopped", retryable=True)
        if late.cancelled_caught and not self._ended:
            words = f"the answer was not complete, or not received, within {self._limits.timeout:g} seconds"
            error = ApiError(words, status=504, kind="timeout_error", code="timeout")
        if error is not None:
            with anyio.move_on_after(_GRACE_SECONDS):  # do not wait for a client that reads nothing
                await self._refuse(error, scope, receive, send)
        self._ended = True

    def _failed(self, failed: Exception) -> ApiError:
        failed = cause_of(failed)
        error = api_error(failed)
        if isinstance(failed, ProviderError) and not isinstance(failed, BudgetError):  # its message may quote a prompt
            status = f", status {failed.status}" if failed.status else ""
            request = f", its request {failed.request_id}" if failed.request_id else ""
            words = (self._exchange.id, type(failed).__name__, failed.endpoint, status, request)
            _log.warning("%s: %s of %s%s%s", *words)
            self._upstreams.failed(self._exchange.model, self._fusion.endpoints.named(failed.endpoint), failed)
            _log.debug("%s: %s", self._exchange.id, failed)
        elif error.status >= 500:
            frames = "".join(traceback.format_tb(failed.__traceback__))
            _log.error("%s: unexpected %s raised at\n%s", self._exchange.id, type(failed).__name__, frames)
        return error

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an error: as an event if a stream has begun, else as a response with the error's status."""
        exchange = self._exchange
        exchange.error = error.code or str(error.status)
        if exchange.outcome == "ok":
            exchange.outcome = "error"
        self._over()
        if self._started:
            await send({"type": "http.response.body", "body": self._form.failure(error), "more_body": False})
        else:
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)

    # ------------------------------------------------------------------------------------------------- whole answers

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        results: dict[int, FusionResult] = {}
        async with self._answers() as answers:
            async for index, item in answers:
                assert isinstance(item, FusionResult)
                results[index] = item
        self._silence.pause()
        self._exchange.results = [results[at] for at in sorted(results)]
        self._exchange.tokens = sum(len(one.tokens) for one in self._exchange.results)
        self._exchange.sent_text()
        headers = {**_headers(self._exchange.results), **self._ignored}
        self._over()
        answer = self._form.whole(self._shape.whole(self._exchange.results))
        await JSONResponse(answer, headers=headers)(scope, receive, send)

    # ------------------------------------------------------------------------------------------------------- streams

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        failed: list[Exception] = []
        async with anyio.create_task_group() as group:
            if self._limits.heartbeat_seconds is not None:
                group.start_soon(self._beat, send, self._limits.heartbeat_seconds, failed, group.cancel_scope)
            try:
                await self._events(send)
            except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
                failed.append(error)
            group.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def _beat(self, send: Send, seconds: float, failed: list[Exception], scope: anyio.CancelScope) -> None:
        """Send a comment whenever nothing has been sent for `seconds`."""
        self._written = anyio.current_time()
        try:
            while not self._finished:
                left = self._written + seconds - anyio.current_time()
                if left > 0:
                    await anyio.sleep(left)
                else:
                    await self._write(send, b"")
        except OSError as error:  # some ASGI servers raise it after the client has disconnected
            failed.append(error)
            scope.cancel()

    async def _write(self, send: Send, data: bytes, *, last: bool = False) -> None:
        """Send a part of the stream, or a comment if `data` is empty; the first call also sends the headers."""
        waited_since = self._written
        async with self._writing:  # if the client reads slowly, another part may be sent before the lock is acquired
            if self._finished or (not data and self._written != waited_since):
                return
            self._finished = last
            if not self._started:
                await self._start(send)
            await send({"type": "http.response.body", "body": data or _HEARTBEAT, "more_body": not last})
            self._ended = last  # set before any further await, during which the client may disconnect
            self._written = anyio.current_time()

    async def _events(self, send: Send) -> None:
        readers: dict[int, TextReader] = {}
        sent: dict[int, int] = {}
        shape, exchange = self._shape, self._exchange
        waiting = b""
        async with self._answers() as answers:
            async for index, item in answers:
                data = b""
                if index not in readers:
                    readers[index], sent[index] = TextReader(), 0
                    data = shape.opening(index)
                if isinstance(item, FusedToken):
                    text = readers[index].read(item)
                    exchange.wrote()
                    if text or (self._asked.logprobs and not item.end):
                        data += shape.piece(index, text, item, sent[index])
                        sent[index] += len(text)
                        exchange.sent_text()
                else:
                    assert isinstance(item, FusionResult)
                    rest = readers[index].rest()
                    data += shape.piece(index, rest, None, sent[index]) if rest else b""
                    data += shape.closing(index, item)
                    exchange.results.append(item)
                waiting += self._form.events(data)
                if waiting and (len(waiting) >= _WRITE_BYTES or not self._more_is_there()):
                    self._silence.pause()
                    await self._write(send, waiting)
                    waiting = b""
                self._silence.heard()
        self._silence.pause()
        end = self._form.events(shape.ending(exchange.results))
        self._over()
        await self._write(send, end, last=True)

    def _more_is_there(self) -> bool:
        """Test whether another token is already available, so that both can be sent together.

        This is common, because one verdict may release several tokens. If there are several answers, the result is
        always False.
        """
        return len(self._asked.prompts) == 1 and self._streams[0].unread > 0

    async def _start(self, send: Send) -> None:
        """Send the headers.

        They are sent only with the first part of the stream, because an earlier error is sent with its own status.
        """
        self._started = True
        headers = [(name.encode(), value.encode()) for name, value in {**_EVENTS, **self._ignored}.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    # ------------------------------------------------------------------------------------------------------- answers

    @property
    def _ignored(self) -> Mapping[str, str]:
        """The header that names the ignored fields of the request; empty if no field was ignored."""
        return {"cosd-ignored": ", ".join(self._shape.ignored)} if self._shape.ignored else {}

    @asynccontextmanager
    async def _answers(self) -> AsyncGenerator[AsyncIterator[_Numbered]]:
        """Provide an iterator over the tokens (if streamed) and results of all answers, with the answers' indices."""
        prompts = self._asked.prompts
        if len(prompts) == 1:
            async with aclosing(self._answer(0)) as items:
                yield items
            return
        failed: list[Exception] = []
        async with anyio.create_task_group() as group:
            into, out = anyio.create_memory_object_stream[_Numbered](0)
            limiter = anyio.CapacityLimiter(_TOGETHER)
            for index in range(len(prompts)):
                group.start_soon(self._collect, index, limiter, into.clone(), failed, group.cancel_scope)
            into.close()
            try:
                async with out:
                    yield out
            except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
                failed.append(error)
            group.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def _collect(
        self,
        index: int,
        limiter: anyio.CapacityLimiter,
        into: MemoryObjectSendStream[_Numbered],
        failed: list[Exception],
        scope: anyio.CancelScope,
    ) -> None:
        """Write one of several answers into their common stream; the first error ends all of them."""
        async with into, limiter:
            try:
                async with aclosing(self._answer(index)) as items:
                    async for item in items:
                        await into.send(item)
            except Exception as error:  # noqa: BLE001 - raised by the caller that started all answers
                failed.append(error)
                scope.cancel()

    async def _answer(self, index: int) -> AsyncGenerator[_Numbered]:
        """Write one answer; yield its tokens, if the answer is streamed, and then its result."""
        options: AnswerOptions = {**self._options}
        left = self._limits.timeout - (time.perf_counter() - self._exchange.began)
        given = options.get("timeout")
        options["timeout"] = max(_LEAST_SECONDS, left if given is None else min(given, left))
        stream = self._fusion.stream(self._asked.prompts[index], **options)
        self._streams.append(stream)
        if self._asked.stream:
            stream.most_unread = self._limits.unread_tokens
        async with stream:
            async for token in stream:
                if self._asked.stream:
                    yield index, token
                else:
                    self._silence.heard()
            yield index, await stream.finished()


def _headers(results: Sequence[FusionResult]) -> Mapping[str, str]:
    """Return the headers with facts about answers that are sent whole."""
    billed = sum(one.billed_tokens for result in results for one in result.usage.values())
    found = {"cosd-billed-tokens": str(billed)}
    found["cosd-unverified-tokens"] = str(sum(one.unverified_tokens for one in results))
    found["cosd-shares"] = ", ".join(f"{name}={share:g}" for name, share in shares_of(results).items())
    judged = [one for one in results if one.judged]
    if judged:
        found["cosd-replacements"] = str(sum(one.replacements or 0 for one in judged))
    if any(one.acceptance_rate is not None for one in judged):
        kept = sum(one.verified_kept_tokens for one in judged)
        everything = kept + sum(one.replaced_tokens or 0 for one in judged)
        found["cosd-acceptance-rate"] = f"{kept / everything if everything else 1:.4f}"
    return found
