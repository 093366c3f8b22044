"""The gateway as an ASGI application: it offers fusions through the routes of OpenAI's API."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import anyio
from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cosd_api import Fusion, SettingError
from cosd_api.apps.gateway.answering import Answering, StopSignal
from cosd_api.apps.gateway.api_errors import ApiError, api_error
from cosd_api.apps.gateway.bodies import Asked, read_chat, read_completion, read_responses
from cosd_api.apps.gateway.body_sizes import BodyLimit, body_limit
from cosd_api.apps.gateway.client_limits import Client, Clients
from cosd_api.apps.gateway.config import ClientKey, GatewayLimits
from cosd_api.apps.gateway.exchange import Exchange, request_id
from cosd_api.apps.gateway.fields import check_ignored
from cosd_api.apps.gateway.metrics import GatewayMetrics
from cosd_api.apps.gateway.readiness import Readiness
from cosd_api.apps.gateway.upstreams import Upstreams
from cosd_api.telemetry import callers_context

__all__ = ["Gateway"]

_log = logging.getLogger("cosd_api.apps.gateway")

_OPEN = ("/health", "/ready")
"""Routes that require no key, because load balancers and health checks have none."""

_ANSWERS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

_MEANT = {path.removeprefix("/v1"): path for path in (*_ANSWERS, "/v1/models")}
"""The routes that paths with these ends are meant for, such as a path without /v1, or with /v1 twice."""

_QUIET = ("/health", "/ready", "/metrics")
"""Routes that monitoring calls every few seconds. Their requests are logged only if they fail."""

_EXPOSED = (
    "x-request-id",
    "retry-after",
    "cosd-acceptance-rate",
    "cosd-replacements",
    "cosd-billed-tokens",
    "cosd-unverified-tokens",
    "cosd-shares",
    "cosd-ignored",
    *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
)
"""Response headers that web pages from other origins may read."""

_BODY_SECONDS = 30.0
_SHORT = 65_536  # maximum size, in bytes, of a body that is parsed in the event loop
_DRAINED = 4_000_000  # maximum number of bytes that are received from a body that is too large


class Gateway:
    """An ASGI application that offers fusions over OpenAI's protocol.

    `cosd serve` runs it on uvicorn; any other ASGI server works, too. The ASGI lifespan opens and closes the fusions.

    Args:
        fusions: the fusions, indexed by the model names under which clients request them. They must not be open yet.
        keys: the name and the limits of each key, indexed by the key's text. Without keys, only clients on this machine
            are served.
        limits: limits on requests.
        cors: origins of web pages that may call the gateway.
        ignore: request fields to ignore, such as `temperature`; by default, a request with such a field is refused.
            Each answer names the ignored fields of its request in `cosd.ignored` and in the header `cosd-ignored`.

    Attributes:
        limits: limits on requests.
        ignore: names of the request fields to ignore.

    Raises:
        SettingError: `ignore` contains a field that cannot be ignored.
    """

    def __init__(
        self,
        fusions: Mapping[str, Fusion],
        *,
        keys: Mapping[str, ClientKey] | None = None,
        limits: GatewayLimits | None = None,
        cors: Sequence[str] = (),
        ignore: Collection[str] = (),
    ) -> None:
        self._fusions = dict(fusions)
        self.ignore = check_ignored(ignore)
        self.limits = limits or GatewayLimits()
        self._clients = Clients(keys or {}, self.limits.concurrency)
        self._readiness = Readiness(self._fusions)
        self._metrics = GatewayMetrics()
        self._upstreams = Upstreams(self._metrics)
        self._stop = StopSignal()
        self._draining = self._stopping = False
        self._created = int(time.time())
        routes = [
            Route(_ANSWERS[0], self._chat, methods=["POST"]),
            Route(_ANSWERS[1], self._complete, methods=["POST"]),
            Route(_ANSWERS[2], self._respond, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._page_of_metrics),
        ]
        self._paths = frozenset(route.path for route in routes)
        self._router = Router(routes, redirect_slashes=False, lifespan=self._lifespan)
        self._app: ASGIApp = self._serve
        if cors:  # this middleware is plain ASGI, so the gateway still notices when a client disconnects
            self._app = CORSMiddleware(
                self._serve, cors, allow_methods=("GET", "POST"), allow_headers=("*",), expose_headers=_EXPOSED
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or handle the ASGI lifespan."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        exchange = Exchange(id=request_id(given), method=scope["method"], path="")
        exchange.path = scope["path"] if scope["path"] in self._paths else ""
        scope["exchange"], scope["app"] = exchange, self  # "app" makes the router raise errors, which `_serve` answers

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = exchange.id
                client: Client | None = scope.get("client_key")
                if client is not None and exchange.path in _ANSWERS:
                    headers.update(client.headers)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if exchange.path in _ANSWERS:
                self._metrics.count(exchange)
            if exchange.path not in _QUIET or exchange.status >= 400:
                exchange.log()

    def report_models(self, say: Callable[[str], None]) -> None:
        """Probe every model's server once, in the background, and report the results to the gateway's operator.

        Args:
            say: function that receives the report: a line with the URL of each server that does not answer, or a single
                line that lists the models if all servers answer. It is called when all probes have ended, within about
                15 seconds, and only during the ASGI lifespan.
        """
        self._readiness.report(say)

    def change_keys(self, keys: Mapping[str, ClientKey]) -> None:
        """Replace the keys; may be called from any thread.

        Counts belong to a key's name, so a new key with the same name continues them. Requests in progress are not
        affected.

        Args:
            keys: the name and the limits of each key, indexed by the key's text.

        Raises:
            SettingError: `keys` is empty although the gateway had keys. Without keys, any client could use the models.
        """
        if self._clients.secured and not keys:
            raise SettingError(
                "there would be no key any more, and any client could use the models: restart the gateway for that"
            )
        self._clients.change(keys)

    def draining(self) -> None:
        """Report "not ready", so that a load balancer sends no more requests. Requests are still answered."""
        self._draining = True

    def stopping(self) -> None:
        """Refuse new requests for answers."""
        self._draining = self._stopping = True

    def end_requests(self) -> None:
        """Abort the requests in progress with an error."""
        self._stop.send()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Identify the client and call the route's handler; send every error in the format of OpenAI's API."""
        exchange: Exchange = scope["exchange"]
        try:
            _check_framing(scope)
            if scope["path"] not in _OPEN and scope["method"] != "OPTIONS":  # browsers send no key with OPTIONS
                scope["client_key"] = client = self._recognized(scope)
                exchange.client = client.name
            await self._router(scope, receive, send)
        except ClientDisconnect:
            exchange.outcome = "disconnected"
        except Exception as failed:  # noqa: BLE001 - every error is sent in the format of OpenAI's API
            error = _of_route(failed, scope) if isinstance(failed, HTTPException) else api_error(failed)
            exchange.outcome, exchange.error = "error", error.code or str(error.status)
            if error.code == "internal":
                frames = "".join(traceback.format_tb(failed.__traceback__))
                _log.error("%s: unexpected %s raised at\n%s", exchange.id, type(failed).__name__, frames)
            if not exchange.status:
                headers = getattr(failed, "headers", None) if isinstance(failed, HTTPException) else None
                await _answer(error, headers)(scope, receive, send)

    def _recognized(self, scope: Scope) -> Client:
        headers, client = Headers(scope=scope), scope.get("client")
        given = headers.get("authorization", ""), headers.get("host", "")
        return self._clients.recognize(*given, address=client[0] if client else None)

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncGenerator[None]:  # noqa: ARG002
        async with AsyncExitStack() as stack:
            for fusion in self._fusions.values():
                await stack.enter_async_context(fusion)
            await stack.enter_async_context(self._readiness.watching())
            yield

    # ------------------------------------------------------------------------------------------------------- answers

    async def _chat(self, request: Request) -> ASGIApp:
        return await self._answering(request, read_chat)

    async def _complete(self, request: Request) -> ASGIApp:
        return await self._answering(request, read_completion)

    async def _respond(self, request: Request) -> ASGIApp:
        return await self._answering(request, read_responses)

    async def _answering(
        self, request: Request, read: Callable[[bytes, GatewayLimits, Collection[str]], Asked]
    ) -> ASGIApp:
        exchange: Exchange = request.scope["exchange"]
        client: Client = request.scope["client_key"]
        client.check()
        client.count_request()
        data = await self._body(request, client)
        with ExitStack() as admitted:
            admitted.enter_context(self._clients.admitted(client, len(data)))
            asked = await self._read(data, read)
            if self._stopping:
                words = "the gateway is stopping"
                raise ApiError(words, status=503, kind="server_error", code="stopping", retryable=True)
            name = self._named(asked.model)
            fusion, asked = self._fusions[name], replace(asked, model=name)
            exchange.model, exchange.stream = name, asked.stream
            place = ExitStack()  # closed before the end of the answer is sent, to be free for the client's next request
            answering = Answering(fusion, asked, self.limits, exchange, self._stop, self._upstreams, place.close)
            place.push(admitted.pop_all())
            place.callback(
                lambda: client.bill(exchange.billed, sum(one.cached_tokens for one in exchange.usage.values()))
            )

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                with (
                    place,
                    self._metrics.in_flight(name),
                    callers_context(request.headers, exchange.id),
                ):
                    await answering.respond(scope, receive, send)
            except ApiError as error:
                exchange.outcome, exchange.error = "error", error.code or str(error.status)
                await _answer(error)(scope, receive, send)

        return respond

    def _named(self, name: str) -> str:
        """Return the name of the fusion that a request asks for; a request without a name asks for the only one."""
        known = ", ".join(self._fusions)
        if not name:
            if len(self._fusions) > 1:
                raise ApiError(f"model is required; the models are: {known}", param="model")
            return known
        if name not in self._fusions:
            words = f"there is no model of this name; the models are: {known}"
            raise ApiError(words, status=404, code="model_not_found", param="model")
        return name

    async def _read(self, data: bytes, read: Callable[[bytes, GatewayLimits, Collection[str]], Asked]) -> Asked:
        """Check a body. A long body is checked in a thread, so that the event loop can serve other requests."""
        if len(data) <= _SHORT:
            return read(data, self.limits, self.ignore)
        return await to_thread.run_sync(read, data, self.limits, self.ignore)

    def _most(self, path: str) -> BodyLimit:
        """Return the limit on the size of a body for one of the routes."""
        rooms = [fusion.endpoints.room for fusion in self._fusions.values()]
        return body_limit(self.limits, rooms, self.limits.prompts if path == _ANSWERS[1] else 1)

    async def _body(self, request: Request, client: Client) -> bytes:
        """Receive the body of a request.

        Raises:
            ApiError: the body is too large, is not declared as JSON, or does not arrive in time; or too many bodies
                are arriving.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a web page from another origin needs permission (CORS) to send this type
            raise ApiError("the body must be JSON, with the header content-type: application/json", status=415)
        most = self._most(request.scope["path"])
        length = request.headers.get("content-length", "")
        size, announced = 0, int(length) if length.isdecimal() else 0
        data = bytearray()
        with anyio.move_on_after(_BODY_SECONDS) as late, self._clients.incoming(client, late) as body:
            if announced <= max(_DRAINED, most.bytes):
                async for part in request.stream():
                    size += len(part)
                    if max(size, announced) > most.bytes:  # keep reading, since many clients read only after sending
                        data.clear()
                        if size > max(_DRAINED, most.bytes):
                            break
                    else:
                        data += part
                        self._clients.grow(body, size)  # an announced length costs a client nothing
        if body.refused is not None:
            raise body.refused
        if late.cancelled_caught:
            raise ApiError("the body did not come in time", status=408, code="body_timeout")
        if max(size, announced) > most.bytes:
            raise ApiError(most.words, status=413, code="body_too_large")
        return bytes(data)

    # -------------------------------------------------------------------------------------------------- other routes

    async def _models(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse({"object": "list", "data": [self._described(name) for name in self._fusions]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not name:
            raise HTTPException(404)
        self._named(name)
        return JSONResponse(self._described(name))

    def _described(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "cosd"}

    async def _health(self, request: Request) -> Response:  # noqa: ARG002
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        state, found, age = await self._readiness.check()
        if state == "ready" and any(self._upstreams.down(name) for name in self._fusions):
            state = "degraded"
        status = "stopping" if self._draining else state
        ready = status in ("ready", "degraded")
        if not ready:
            exchange: Exchange = request.scope["exchange"]
            exchange.outcome, exchange.error = "error", status.replace(" ", "_")
        answer: dict[str, Any] = {"status": status}
        with suppress(ApiError):  # a client without a valid key is sent only the status
            self._recognized(request.scope)
            answer |= {"fusions": found, "age_seconds": None if age is None else round(age, 3)}
        return JSONResponse(answer, 200 if ready else 503)

    async def _page_of_metrics(self, request: Request) -> Response:  # noqa: ARG002
        return Response(self._metrics.page(), media_type=None, headers={"content-type": self._metrics.content_type})


def _check_framing(scope: Scope) -> None:
    """Refuse a request that states its length in two ways (RFC 9112, 6.1), because a proxy may use the other length.

    Raises:
        HTTPException: the request has both a content length and a transfer encoding.
    """
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers and "content-length" in headers:
        raise HTTPException(400, headers={"connection": "close"})


def _answer(error: ApiError, more: Mapping[str, str] | None = None) -> Response:
    headers = {**(more or {}), **error.headers}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.body, error.status, headers)


def _of_route(error: HTTPException, scope: Scope) -> ApiError:
    if error.status_code == 405:
        preflight = scope["method"] == "OPTIONS"
        words = "; the gateway's setting cors: names the origins of web pages that may call it" if preflight else ""
        return ApiError(f"this method is not allowed here{words}", status=405)
    if error.status_code == 400:
        return ApiError("a request has either content-length or transfer-encoding, not both")
    path = scope["path"].rstrip("/")
    meant = next((route for end, route in _MEANT.items() if path.endswith(end)), None)
    words = f"{', '.join(_ANSWERS)} and /v1/models are served" if meant is None else f"{meant} is the right one"
    if path.startswith(f"{_ANSWERS[2]}/"):
        words = f"the gateway keeps no answers, and only POST {_ANSWERS[2]} is served"
    return ApiError(f"there is no such route; {words}", status=error.status_code, code="not_found")
