"""What the adapters of all servers have in common: one server, entered and left with its connections, and a name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from typing import Any, ClassVar, Self, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from cosd_providers.chat.rendering import ChatRenderer
from cosd_providers.chat.templates import Template, TemplateRefusal
from cosd_providers.contract import Piece, Provider
from cosd_providers.errors import InvalidRequestError, ModelChoiceError, ProviderError, ResponseError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt
from cosd_providers.strategies import Strategy, checked_strategy

__all__ = ["NO_TEMPLATE", "Adapter", "checked_extra"]

_LASTING = ("id", "root", "parent", "max_model_len", "meta")
"""What a server tells of a model that stays the same as long as the model does."""

_NEAR_SECONDS = 0.005

NO_TEMPLATE = "Give the model's own: connect(url, chat_template=...), a tokenizer_config.json or a .jinja file."
"""What helps where a server renders no chat template."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_T = TypeVar("_T")


class Adapter:
    """One model behind one server. An adapter sets `_transport` and `_model` when it is made.

    Attributes:
        strategies: the strategies that this engine can be asked by; empty where there is only one.
    """

    strategies: ClassVar[tuple[Strategy, ...]] = ()

    _strategy: Strategy | None = None
    _transport: Transport
    _model: str | None
    _listing: str | None = "/v1/models"
    _ready_route: str | None = None
    _near = False
    _recalled: Mapping[str, Any] | None = None
    _chats: Adapter | None = None
    _is_chat = False
    _talk: ChatRenderer | None = None
    _template: Template | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.endpoint!r}, model={self._model!r})"

    def __getstate__(self) -> Mapping[str, Any]:
        """A copy has its own view for conversations."""
        return {**self.__dict__, "_chats": None}

    @property
    def name(self) -> str:
        """Host and port, with the model before it where one was named."""
        host = urlsplit(self._transport.endpoint).netloc
        return f"{self._model}@{host}" if self._model else host

    @property
    def sent(self) -> int:
        """Generation requests that were sent: those by which it gets to know its server, too."""
        return self._transport.sent

    async def keep_ready(self) -> None:
        """Leaves a connection for the next request, by asking a route that answers at once; see `contract.Ready`.

        A stream that is left takes its connection with it, and a new one costs a round trip, with TLS two or three.
        Nothing is done for a server that is so near that this is no time, nor with a client of the user's own.
        """
        if self._ready_route is None or self._near or self._transport.http_client is not None:
            return
        began = time.monotonic()
        with suppress(ProviderError):
            await self._transport.get(self._ready_route, once=True, quick=True)
            self._near = time.monotonic() - began < _NEAR_SECONDS

    def with_strategy(self, strategy: Strategy | None) -> Self:
        """The same model, asked by one strategy; None for the engine's own rule.

        Raises:
            ValueError: the engine has no such strategy.
        """
        view = copy(self)
        view._strategy = checked_strategy(strategy, self.strategies)
        return view

    def use_template(self, template: Template) -> None:
        """Renders conversations with this template, and not with the server's."""
        self._template = template

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """How the model is asked to answer a conversation; see `messages.ChatProvider`."""
        view = self._chats
        if view is None:
            made = await self._for_chat()
            view = self._chats = self._chats or made  # another one may have been faster
        if view._talk is None:
            view._talk = ChatRenderer(self._transport.endpoint)
        return await view._talk.render_prompt(view, messages, on_special_tokens)

    async def _for_chat(self) -> Self:
        """This server, asked to go on with texts that a chat template has begun: where that differs, another view."""
        return self

    async def render(self, messages: list[dict[str, str]]) -> str:
        """The conversation as the model reads it, up to where its answer begins.

        Raises:
            TemplateRefusal: the template does not take it.
            UnsupportedError: there is no template.
        """
        if self._template is None:
            return await self._render(messages)
        try:
            text: object = self._template(messages)
        except (ProviderError, TemplateRefusal):
            raise
        except Exception as error:  # a user's function may refuse in its own way, such as a tokenizer's
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            words = f"the function given as chat_template must return text, not {type(text).__name__}"
            raise UnsupportedError(words, endpoint=self._transport.endpoint)
        return text

    async def _render(self, messages: list[dict[str, str]]) -> str:  # noqa: ARG002 - a hook
        """By the server's template. An adapter whose server renders has its own; raises as `render`."""
        words = "the server does not render its chat template"
        raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=NO_TEMPLATE)

    async def begun(self, prompt: str) -> str:
        """A rendered prompt without a beginning-of-sequence token that the server adds by itself."""
        return prompt

    async def literal(self, pieces: Sequence[str]) -> Provider | None:  # noqa: ARG002 - a hook
        """The model, given token ids for a prompt: each piece encoded by itself. None where it takes text only."""
        return None

    async def tokenize(self, text: str) -> list[Piece]:
        """The model's encoding of a text; see `contract.Provider`."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._transport.__aexit__(*exc)

    def restore(self, facts: Mapping[str, Any], endpoint: str) -> None:
        """Takes the facts of another `snapshot`, so that the first use asks only whether the same model is served.

        Raises:
            ValueError: it is of another server than this `endpoint`.
        """
        if _located(endpoint) != _located(self._transport.endpoint):
            raise ValueError(f"the report is of {endpoint}, not of {self._transport.endpoint}: probe this one")
        self._recalled = facts

    async def _kept(self, known: object, model: str) -> dict[str, Any]:
        """What is known, with what the server tells of the model, as JSON can hold it."""
        kept = TypeAdapter[Any](type(known)).dump_python(known, mode="json")
        return {"served": await self._served(model), "known": kept}

    async def _recollected(self, kind: type[_T], learn: Callable[[], Awaitable[_T]]) -> _T:
        """What was recalled, or else what `learn` finds; see `_taken_up`."""
        found = await self._taken_up(kind)
        return await learn() if found is None else found

    async def _taken_up(self, kind: type[_T]) -> _T | None:
        """What was recalled, if the same model is still served; None where nothing was.

        Raises:
            UnsupportedError: what was recalled is not what such an adapter learns.
            ModelChoiceError: another model is served now.
        """
        if self._recalled is None:
            return None
        try:
            known = TypeAdapter(kind).validate_python(self._recalled["known"])
            served = TypeAdapter(dict[str, Any]).validate_python(self._recalled["served"])
        except (KeyError, ValidationError):
            words = "the report does not hold what this kind of server is known by"
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint="Probe again.") from None
        if served and (now := await self._served(served["id"])) != served:
            found = "another one of that name" if now else "it no longer"
            words = f"the report is of the model {served['id']!r}; the server has {found}"
            raise ModelChoiceError(words, endpoint=self._transport.endpoint, hint="Probe again.")
        return known

    async def _served(self, model: str) -> dict[str, Any]:
        """What the server tells of a model; nothing where it does not list it."""
        if self._listing is None:
            return {}
        try:
            listed: Any = await self._transport.get(self._listing)
        except (InvalidRequestError, ResponseError):
            return {}
        models = cast("list[Any]", listed.get("data") or []) if isinstance(listed, dict) else []
        for one in models:
            if isinstance(one, dict) and one.get("id") == model:
                return {key: one[key] for key in _LASTING if key in one}
        return {}


def _located(endpoint: str) -> str:
    """An endpoint with one name for this machine: its model is seen to be the same one at the first use."""
    parts = urlsplit(endpoint)
    if parts.hostname not in _LOOPBACK:
        return endpoint
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://localhost{port}{parts.path}"


def checked_extra(extra_body: Mapping[str, object] | None, owned: AbstractSet[str]) -> Mapping[str, object]:
    """What a user wants merged into every generation request.

    Raises:
        ValueError: it sets what the fusion itself decides (`owned`).
    """
    taken = sorted(owned & set(extra_body or {}))
    if taken:
        raise ValueError(f"extra_body cannot set {', '.join(taken)}: decoding is greedy, and the fusion sets it")
    return extra_body or {}
