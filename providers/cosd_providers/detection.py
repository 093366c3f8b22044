"""Detection of the engine at a URL, and a provider that detects its engine when it is first used.

Most servers identify themselves in `/v1/models`, as the owner of their models. TGI, older llama.cpp servers and a few
other servers are recognised by a route that no other engine has. Any other server that lists models counts as
OpenAI-compatible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast
from urllib.parse import urlsplit

import anyio
from anyio.lowlevel import current_token

from cosd_providers.concurrency import Lazy
from cosd_providers.contract import Provider, Ready
from cosd_providers.errors import (
    InvalidRequestError,
    ProviderError,
    ProviderTimeoutError,
    ResponseError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.forwarding import ForwardingProvider
from cosd_providers.http.transport import Transport
from cosd_providers.messages import ChatProvider, Message, OnSpecialTokens, RenderedPrompt

_OWNERS = {"llamacpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang", "library": "ollama"}
"""The engine for each value of the `owned_by` field of a model."""

_ROUTES = {
    "/info": ("max_total_tokens", "tgi"),
    "/props": ("default_generation_settings", "llama.cpp"),
    "/api/tags": ("models", "ollama"),  # models from other registries have their maker's name as `owned_by`
    "/openapi.json": ("paths./extras/tokenize/count", "llama-cpp-python"),
}
"""Routes that only one engine has, each with a field of its answer and the engine. A dot separates nested fields."""

_NO_ROUTE = (401, 403, 404, 405, 501)
"""The statuses with which servers and proxies answer a route that they do not have or do not let through."""

_NAME_IT = "Or name the engine: engine='openai' for connect, --engine openai for cosd probe."


async def detect(transport: Transport) -> str:
    """Find the engine at a URL: one of `connect.ADAPTERS`, or the name of an OpenAI-compatible dialect.

    Raises:
        UnsupportedError: the kind of server is unknown.
        ProviderError: the server cannot be reached, or refuses a request.
    """
    listed = await _ask(transport, "/v1/models")
    models = cast("list[Any]", listed["data"]) if isinstance(listed.get("data"), list) else None
    for model in models or ():
        owner = cast("dict[str, Any]", model).get("owned_by") if isinstance(model, dict) else None
        if isinstance(owner, str) and owner in _OWNERS:
            return _OWNERS[owner]
    for route, (field, engine) in _ROUTES.items():
        if _has(await _ask(transport, route, strict=models is None), field):
            return engine
    if models is not None:
        return "openai"
    raise UnsupportedError(
        "cannot tell what kind of server this is: it answers none of /v1/models, /info, /props and /api/tags",
        endpoint=transport.endpoint,
        hint=f"Is this the URL of the API, without a route? {_NAME_IT}",
    )


def _has(answer: Mapping[str, Any], field: str) -> bool:
    outer, _, inner = field.partition(".")
    return outer in answer and (not inner or (isinstance(answer[outer], dict) and inner in answer[outer]))


async def _ask(transport: Transport, path: str, *, strict: bool = True) -> dict[str, Any]:
    """Request a route, and return the answer; empty if the server does not have the route.

    Some gateways answer an unknown route with 401, 403 or 500, or not at all. Unless `strict` is set, a route with such
    an answer also counts as missing, and the request is not repeated.
    """
    try:
        answer = await transport.get(path, once=not strict, quick=True)
    except (InvalidRequestError, ResponseError):
        return {}
    except (StatusError, ProviderTimeoutError) as error:
        if isinstance(error, ProviderTimeoutError):
            error.hint = f"It accepted the connection. Is it an API? {_NAME_IT}"
        if strict:
            raise
        return {}
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}


def _lacks_a_route(error: ProviderError) -> bool:
    """True if an adapter failed because a route of its engine is missing or not let through."""
    cause = error.__cause__ if isinstance(error, UnsupportedError) else error
    if isinstance(cause, ResponseError):
        return not cause.retryable
    return isinstance(cause, StatusError) and cause.status in _NO_ROUTE


class DetectedProvider(ForwardingProvider):
    """A provider that detects which adapter its server needs when it is first used, and delegates to that adapter.

    A copy contains only the settings, and detects the engine again when it is first used.
    """

    _no_states = "llama.cpp's own server does, started with --embeddings --pooling none."

    def __init__(
        self,
        transport: Transport,
        make: Callable[..., Provider],
        model: str | None,
        own_messages: tuple[Message, ...] = (),
    ) -> None:
        # messages that the adapter from `make` puts before every conversation (`messages.OwnMessages`)
        self._own_messages = own_messages
        self._transport = transport
        # a function that creates the adapter for an engine; with `over_v1`, an adapter that uses only the server's
        # OpenAI-compatible routes
        self._make = make
        self._model = model  # the model's name, which becomes part of `name`
        self._adapter: Lazy[Provider] = Lazy()
        self._users: dict[object, int] = {}  # how many times this provider is entered in each event loop
        self._entered: dict[object, int] = {}  # how many times the adapter is entered in each event loop

    def __repr__(self) -> str:
        return f"connect({self._transport.endpoint!r}, model={self._model!r})"

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_users": {}, "_entered": {}}

    @property
    def name(self) -> str:
        """The host and port, preceded by the model's name if one was given."""
        host = urlsplit(self._transport.endpoint).netloc
        return f"{self._model}@{host}" if self._model else host

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """See `messages.OwnMessages`."""
        return self._own_messages

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        loop = current_token()
        self._users[loop] = self._users.get(loop, 0) + 1
        if self._adapter.found is not None:
            await self._enter(self._adapter.found)
        return self

    async def __aexit__(self, *exc: object) -> None:
        loop = current_token()
        self._users[loop] -= 1
        if self._adapter.found is not None and self._entered.get(loop, 0) > self._users[loop]:
            self._entered[loop] -= 1
            await self._adapter.found.__aexit__(*exc)
        if not self._users[loop]:
            del self._users[loop]
            self._entered.pop(loop, None)
        await self._transport.__aexit__(*exc)

    async def adapter(self) -> Provider:
        """Detect the adapter, enter it as many times as this provider is entered in this event loop, and return it."""
        adapter = await self._adapter.get(self._find)
        await self._enter(adapter)
        return adapter

    async def _wrapped(self) -> Provider:
        return await self.adapter()

    async def _find(self) -> Provider:
        engine = await detect(self._transport)
        adapter = self._make(engine)
        try:
            await adapter.describe()
        except BaseException as error:
            lacks = isinstance(error, ProviderError) and _lacks_a_route(error)
            if isinstance(error, UnsupportedError) and not lacks:
                return adapter  # it gives its reasons at each use
            with anyio.CancelScope(shield=True):
                async with adapter:  # closes its connections
                    pass
            if not lacks:
                raise
            return self._make(engine, over_v1=True)
        return adapter

    async def _enter(self, adapter: Provider) -> None:
        loop = current_token()
        while self._entered.get(loop, 0) < self._users.get(loop, 0):
            self._entered[loop] = self._entered.get(loop, 0) + 1
            await adapter.__aenter__()

    async def keep_ready(self) -> bool | None:
        """See `contract.Ready`; nothing happens before the adapter is known."""
        found = self._adapter.found
        return await found.keep_ready() if isinstance(found, Ready) else None

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """See `messages.ChatProvider`."""
        adapter = await self.adapter()
        assert isinstance(adapter, ChatProvider)  # every adapter is a `ChatProvider`
        return await adapter.render_prompt(messages, on_special_tokens=on_special_tokens)
