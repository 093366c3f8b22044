"""The base class of all engines, with the construction, discovery, conversations and errors that they share.

An engine gives access to one model on one server. It derives from `Engine` and supplies

- `_discover()`: finds out the engine's own `ServerFacts`, once;
- `_draft(...)`: begins a draft, usually with the loop in `drafting`;
- `propose`: see `contract.Provider`; its rounds of requests come from `greedy.answer` or `proposing`;
- `score` and `tokenize`, if the server can score and encode;
- `_render`, `begun`, `literal` and `_for_chat`, if the server renders conversations;
- `probe_client()`: returns a client without checks, for the probe.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import AliasChoices, AliasPath, BaseModel, Field, TypeAdapter, ValidationError

from cosd_providers.chat.rendering import ChatRenderer
from cosd_providers.chat.templates import JinjaTemplate, Template, TemplateRefusal
from cosd_providers.concurrency import Lazy
from cosd_providers.contract import Context, DraftEnd, Piece, Provider, Question, ServerInfo, Token, WordEnds
from cosd_providers.drafting import DraftRequests, streamed
from cosd_providers.errors import (
    InvalidRequestError,
    ModelChoiceError,
    ProviderError,
    ResponseError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.greedy import boundaries
from cosd_providers.http.limits import Limits
from cosd_providers.http.transport import FEW_IDLE, HttpClient, Timeout, Transport
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt, ToolSample, after_own
from cosd_providers.parsing import parse
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy, checked_strategy
from cosd_providers.text import sendable
from cosd_providers.tokenizers import Tokenizer, beside, crossing, encoded, length, load_tokenizer, word_ends
from cosd_providers.usage import Usage

_LASTING = ("id", "root", "parent", "max_model_len", "meta")
"""Fields of a listed model that stay the same as long as the same model is served."""

_NAMED = 8  # the greatest number of models that an error message lists

_NEAR_SECONDS = 0.005  # a server that answers faster than this is near

NO_TEMPLATE = "Give the model's own: connect(url, chat_template=...), a tokenizer_config.json or a .jinja file."
"""The hint of an error if the server does not render a chat template."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_MARK = "5f0c9a"  # a user's message for a trial of the chat template

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about a server. Engines add their own fields."""

    info: ServerInfo  # the result of `describe`


_F = TypeVar("_F", bound=ServerFacts)


class EngineOptions(TypedDict, total=False):
    """The arguments that every engine accepts, as in `connect`."""

    model: str | None
    api_key: str | None
    headers: Mapping[str, str] | None
    extra_body: Mapping[str, object] | None
    timeout: Timeout
    http_client: HttpClient | None
    limits: Limits | None


class Engine(Generic[_F]):
    """One model on one server, whose facts are found out once, at the first use.

    Args:
        url: the server's URL.
        owned: fields of a request that `extra_body` may not set.
        strategy: the kind of request for proposals; None for the engine's own rule.
        tokenizer: the model's tokenizer, as for `load_tokenizer`.
        model: the model's name; required if the server has several models.
        extra_body: fields merged into every generation request.
        options: as in `Transport`.

    Attributes:
        strategies: the strategies that the engine offers for proposals; empty if it has only one.
        by_ids: whether the engine may accept contexts by ids, so that the strategy `"watch"` is possible.

    Raises:
        ValueError: `extra_body` sets a field in `owned`, or the engine has no such strategy.
    """

    strategies: ClassVar[tuple[Strategy, ...]] = ()
    by_ids: ClassVar[bool] = False

    _facts_type: type[_F]
    _strategy: Strategy | None = None
    _watch: bool | None = None
    _listing: str | None = "/v1/models"
    _ready_route: str | None = None
    _near = False
    _idle: int = FEW_IDLE
    _recalled: Mapping[str, Any] | None = None
    _chats: Engine[Any] | None = None
    _talk: ChatRenderer | None = None
    _template: Template | None = None
    own_messages: tuple[Message, ...] = ()

    def __init__(
        self,
        url: str,
        *,
        owned: AbstractSet[str],
        strategy: Strategy | None,
        tokenizer: object = None,
        model: str | None = None,
        extra_body: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        self._extra = checked_extra(extra_body, owned)
        self._model = model
        self._transport = Transport(url, idle=self._idle, **options)
        self._tokenizer: Tokenizer | None = None if tokenizer is None else load_tokenizer(tokenizer)
        self._splits = self._tokenizer is not None and word_ends(self._tokenizer) is not None
        self._use_strategy(strategy)
        self._crossing = Lazy[bytes]()
        self._found = Lazy[_F]()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._transport.endpoint!r}, model={self._model!r})"

    def __getstate__(self) -> Mapping[str, Any]:
        """Return the state without the view for conversations, because a copy creates its own view."""
        return {**self.__dict__, "_chats": None}

    @property
    def name(self) -> str:
        """The host and port, preceded by the model's name if one was given."""
        host = urlsplit(self._transport.endpoint).netloc
        return f"{self._model}@{host}" if self._model else host

    @property
    def sent(self) -> int:
        """The number of generation requests sent so far, including discovery."""
        return self._transport.sent

    @property
    def encodes_locally(self) -> bool:
        """True if text is encoded with a local tokenizer from the user."""
        return self._tokenizer is not None

    async def word_splitter(self) -> WordEnds | None:
        """Return the word splitter of the local tokenizer, if the user gave one; see `contract.WordSplitter`."""
        return word_ends(self._tokenizer) if self._tokenizer is not None else None

    async def crossing_token(self) -> bytes | None:
        """Look for the token in the vocabulary of the local tokenizer, once; see `contract.KnownVocabulary`."""
        if self._tokenizer is None:
            return None
        return await self._crossing.get(partial(crossing, self._tokenizer)) or None

    @abstractmethod
    async def _discover(self) -> _F:
        """Find out the server's kind, model and abilities.

        Raises:
            UnsupportedError: the server is of a different kind, or cannot be used.
            ModelChoiceError: there are several models and none was named, or the named model is missing.
        """

    async def discovered(self) -> _F:
        """Return the facts about the server, which are discovered at the first use or restored."""

        async def find() -> _F:
            restored = await self._taken_up(self._facts_type)
            return await self._discover() if restored is None else restored

        return await self._found.get(find)

    async def facts(self) -> _F:
        """Return the facts that apply to this view of the server."""
        return await self.discovered()

    async def describe(self) -> ServerInfo:
        """Describe the server and its model; see `contract.Provider`."""
        info = (await self.discovered()).info
        if self._watch is None and not self._splits:
            return info
        able = info.capabilities
        watch = able.watch if self._watch is None else self._watch
        return replace(info, capabilities=replace(able, watch=watch, words=self._splits))

    async def describe_again(self) -> ServerInfo:
        """Discover the server anew; see `contract.DescribesAgain`. If that fails, the known facts remain."""
        known, self._found = self._found, Lazy[_F]()
        try:
            return await self.describe()
        except BaseException:
            self._found = known
            raise

    async def snapshot(self) -> dict[str, Any]:
        """The facts about the server, for `restore`."""
        facts = await self.discovered()
        return await self._kept(facts, facts.info.model)

    @abstractmethod
    async def _draft(self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage) -> DraftRequests:
        """Begin a draft that is known to be supported; the arguments are as in `contract.Provider.generate`."""

    def generate(
        self,
        context: Context,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        temperature: float = 0,
        seed: int | None = None,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream a draft; see `contract.Provider`."""

        async def begin() -> DraftRequests:
            raw = context.ids is not None
            options = DraftOptions(alternatives, temperature, seed, continuation=continuation, raw=raw)
            able = (await self.facts()).info.capabilities
            if options.raw and not able.ids:
                words = "the endpoint takes no token ids for a partial answer, or does not show those that it writes"
                raise self._unsupported(words, "Give it a Context without ids.")
            if options.sampled and not (able.sampling or able.draws):
                words = "the endpoint is not known to draw tokens from the model's own distribution (temperature=1)"
                hint = "Use a method that drafts greedily, or a server that samples: docs/servers.md lists them."
                raise self._unsupported(words, hint)
            if continuation is not None and not able.token_ids:
                raise self._unsupported("a draft cannot continue from token ids: the server takes text only")
            return await self._draft(context, max_tokens, options, usage)

        return streamed(begin)

    def connect_options(self) -> dict[str, str]:
        """The options that `connect` needs, in addition to the engine, to recreate this adapter."""
        return {"model": self._model} if self._model else {}

    async def keep_ready(self) -> bool:
        """Open a connection for the next request, by requesting a route that answers at once; see `contract.Ready`.

        Closing a stream early closes its connection, and a new connection costs one round trip, or two or three with
        TLS. No request is sent if the server answers quickly, or if the user supplied an HTTP client.
        """
        if self._ready_route is None or self._near or self._transport.http_client is not None:
            return False
        began = time.monotonic()
        with suppress(ProviderError):
            await self._transport.get(self._ready_route, once=True, quick=True)
            self._near = time.monotonic() - began < _NEAR_SECONDS
        return not self._near

    async def check_alive(self) -> None:
        """Request a route that answers at once; if there is none, request the list of models. See `contract.Alive`."""
        route = self._ready_route or self._listing
        if route is not None:
            with suppress(InvalidRequestError):  # the route is missing, but the server answers
                await self._transport.get(route, once=True, quick=True)

    def with_strategy(self, strategy: Strategy | None) -> Self:
        """Return a view of this model that uses one strategy, or the engine's own rule if `strategy` is None.

        Raises:
            ValueError: the engine has no such strategy.
        """
        view = copy(self)
        view._use_strategy(strategy)
        return view

    def _use_strategy(self, strategy: Strategy | None) -> None:
        """Set the strategy. The fusion itself runs `"watch"`; other requests then follow the engine's own rule.

        Raises:
            ValueError: the engine has no such strategy.
        """
        able: tuple[Strategy, ...] = (*self.strategies, "watch") if self.by_ids else self.strategies
        chosen = checked_strategy(strategy, able)
        self._watch = None if chosen is None else chosen == "watch"
        self._strategy = None if chosen == "watch" else chosen

    def use_template(self, template: Template) -> None:
        """Render conversations with this template instead of the server's."""
        self._template = template

    def use_messages(self, own: tuple[Message, ...]) -> None:
        """Put these messages before every conversation; see `messages.OwnMessages`."""
        self.own_messages = own

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """Return the prompt that makes the model answer a conversation; see `messages.ChatProvider`."""
        view, renderer = await self._chat()
        return await renderer.render_prompt(view, after_own(self.own_messages, messages), on_special_tokens)

    async def tool_sample(self) -> ToolSample:
        """Render a short conversation with a tool call; see `messages.ToolTemplate`."""
        view, renderer = await self._chat()
        return await renderer.tool_sample(view)

    async def _chat(self) -> tuple[Engine[Any], ChatRenderer]:
        """Return the view that answers conversations, and its renderer."""
        view = self._chats
        if view is None:
            made = await self._for_chat()
            view = self._chats = self._chats or made  # another caller may have created a view meanwhile
        if view._talk is None:
            view._talk = ChatRenderer(self._transport.endpoint)
        return view, view._talk

    async def _for_chat(self) -> Self:
        """Return the view that continues texts rendered by a chat template; `self` if no separate view is needed."""
        return self

    async def render(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render a conversation, with tools in OpenAI's format, as the model reads it, up to the start of its answer.

        A template that does not know tools leaves them out.

        Raises:
            TemplateRefusal: the template refuses the conversation.
            UnsupportedError: there is no template.
        """
        if self._template is None:
            return await self._render(messages, tools)
        try:
            render = self._template
            text: object = render(messages, tools) if isinstance(render, JinjaTemplate) else render(messages)
        except (ProviderError, TemplateRefusal):
            raise
        except Exception as error:  # a user's function may raise any error, for example one from a tokenizer
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise self._unsupported(f"the function given as chat_template must return text, not {type(text).__name__}")
        return text

    async def _render(
        self,
        messages: list[dict[str, Any]],  # noqa: ARG002 - a hook
        tools: Sequence[Mapping[str, Any]] = (),  # noqa: ARG002
    ) -> str:
        """Render a conversation with the server's template. Raises the same errors as `render`."""
        raise self._unsupported("the server does not render its chat template", NO_TEMPLATE)

    async def begun(self, prompt: str) -> str:
        """Strip the beginning-of-sequence token, which the server itself adds, from a rendered prompt."""
        return prompt

    async def literal(self, pieces: Sequence[str]) -> Provider | None:  # noqa: ARG002 - a hook
        """Return a view whose prompts are ids, encoded piece by piece; None if the server accepts only text."""
        return None

    async def score(
        self,
        context: Context,  # noqa: ARG002
        *,
        alternatives: int = 0,  # noqa: ARG002
        end: bool = False,  # noqa: ARG002
        usage: Usage,  # noqa: ARG002
    ) -> list[Token]:
        """Score a text; see `contract.Provider`. Unsupported unless an engine overrides it."""
        raise self._unsupported("the server does not give the probabilities of a given text")

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode a text with the local tokenizer; see `contract.Provider`. Engines whose server encodes override it.

        Raises:
            UnsupportedError: no tokenizer was given.
        """
        if self._tokenizer is None:
            raise self._unsupported("the server does not encode text", "Give the model's own as `tokenizer`.")
        return await encoded(self._tokenizer, text)

    async def count_tokens(self, text: str) -> int:
        """Count the tokens of a text; see `contract.TokenCounts`."""
        if self._tokenizer is None:
            return len(await self.tokenize(text))
        return await beside(length, self._tokenizer, text)

    async def _places(self, context: Context, questions: Sequence[Question] | None) -> Sequence[Question]:
        """Return the questions; if None, create one at every boundary of the model's encoding of the text."""
        if questions is not None:
            return questions
        pieces = await self.tokenize(context.prompt + sendable(context.text))
        return boundaries((piece.data for piece in pieces), len(context.prompt.encode()))

    def _unsupported(self, words: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._transport.__aexit__(*exc)

    def restore(self, facts: Mapping[str, Any], endpoint: str) -> None:
        """Restore the facts from a `snapshot`, so that the first use only checks whether the server has the same model.

        Raises:
            ValueError: the snapshot was taken from a different server, whose URL is `endpoint`.
        """
        if _located(endpoint) != _located(self._transport.endpoint):
            raise ValueError(f"the report is of {endpoint}, not of {self._transport.endpoint}: probe this one")
        self._recalled = facts

    async def _kept(self, known: object, model: str) -> dict[str, Any]:
        """Return facts in the form of a `snapshot`: as JSON, with the server's description of the model."""
        kept = TypeAdapter[Any](type(known)).dump_python(known, mode="json")
        return {"served": await self._served(model), "known": kept}

    async def _taken_up(self, kind: type[_T]) -> _T | None:
        """Return the restored facts if the server still has the same model; None if no snapshot was restored.

        Raises:
            UnsupportedError: the snapshot belongs to a different kind of server.
            ModelChoiceError: the server now has a different model.
        """
        if self._recalled is None:
            return None
        try:
            known = TypeAdapter(kind).validate_python(self._recalled["known"])
            served = TypeAdapter(dict[str, Any]).validate_python(self._recalled["served"])
        except (KeyError, ValidationError):
            words = "the report lacks the facts about this kind of server"
            raise self._unsupported(words, "Probe again.") from None
        if served and (now := await self._served(served["id"])) != served:
            found = "another one of that name" if now else "it no longer"
            words = f"the report is of the model {served['id']!r}; the server has {found}"
            raise ModelChoiceError(words, endpoint=self._transport.endpoint, hint="Probe again.")
        return known

    async def _served(self, model: str) -> dict[str, Any]:
        """Request the server's description of a model; empty if the server does not list the model."""
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
    """The endpoint, with `localhost` in place of any other loopback address."""
    parts = urlsplit(endpoint)
    if parts.hostname not in _LOOPBACK:
        return endpoint
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://localhost{port}{parts.path}"


def checked_extra(extra_body: Mapping[str, object] | None, owned: AbstractSet[str]) -> Mapping[str, object]:
    """Check the fields that a user wants merged into every generation request.

    Raises:
        ValueError: `extra_body` sets a field that the fusion controls (`owned`), or is not JSON.
    """
    extra = dict(extra_body or {})
    taken = sorted(owned & set(extra))
    if taken:
        raise ValueError(f"extra_body cannot set {', '.join(taken)}: the fusion sets it itself")
    try:
        json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra_body is not JSON: {error}") from None
    return extra


class ListedModel(BaseModel):
    """An entry in the response of `/v1/models`: a name of the model itself, or of an adapter (LoRA) on top of it."""

    id: str
    aliases: list[str] | None = None  # other names of the model
    root: str | None = None  # the model itself, which may have several names; None if the server does not show it
    parent: str | None = None  # the model that the adapter is for; None for the model itself
    # size of the context in tokens
    max_model_len: int | None = Field(
        None, validation_alias=AliasChoices("max_model_len", AliasPath("meta", "n_ctx"), "context_length")
    )
    # number of tokens in the vocabulary
    vocabulary: int | None = Field(default=None, validation_alias=AliasPath("meta", "n_vocab"))


class Models(BaseModel):
    """The response of `/v1/models`."""

    data: list[ListedModel]


async def ask_only(transport: Transport, kind: type[_M], path: str, *, looks: str, url: str) -> _M:
    """Request a route that only one engine has, and return the response.

    For the error message, `looks` names the engine, and `url` the program whose URL the user should give.

    Raises:
        UnsupportedError: the server is of a different kind.
    """
    try:
        return parse(kind, await transport.get(path), transport.endpoint)
    except (InvalidRequestError, ResponseError) as error:
        if error.retryable:  # a broken connection proves nothing about the kind of server
            raise
        words = f"this does not look like {looks}"
        hint = (
            f"Give the URL of {url}, without /v1; if a proxy passes only /v1, give engine='openai', and for"
            " another kind of server its own engine or none."
        )
        raise UnsupportedError(words, endpoint=transport.endpoint, hint=hint) from error


def choose(models: Sequence[ListedModel], wanted: str | None, endpoint: str) -> ListedModel:
    """Choose the model to use. A model with several names is used under the first; an adapter (LoRA) must be named.

    Raises:
        ModelChoiceError: there are several models and none was named, or the named model is missing.
    """
    own = [one for one in models if one.parent is None]
    if wanted is None and own and len({one.root or one.id for one in own}) == 1:
        return own[0]
    named = [one for one in models if wanted == one.id] or [one for one in models if wanted in (one.aliases or ())]
    if named:
        return named[0]
    raise no_model(wanted, (one.id for one in models), endpoint)


def no_model(wanted: str | None, ids: Iterable[str], endpoint: str) -> ModelChoiceError:
    """Create the error for a model that cannot be chosen."""
    names = [repr(one) for one in ids]
    unnamed = "several models, and none was named" if names else "no model was named"
    if len(names) > _NAMED:
        names[_NAMED:] = [f"and {len(names) - _NAMED} more"]
    problem = f"no model {wanted!r}" if wanted else unnamed
    words = f"{problem}; the server has {', '.join(names) or 'none'}"
    return ModelChoiceError(words, endpoint=endpoint, hint="Give one as `model`.")


async def answer_cue(template: Callable[[str], Awaitable[str | None]]) -> str | None:
    """Find the text that a chat template puts between a user's message and the answer; None if it is unknown.

    `template` renders a user's message, up to the answer, or returns None.
    """
    try:
        written = await template(_MARK)
    except (StatusError, ResponseError, UnsupportedError, TemplateRefusal):  # some templates refuse this message
        return None
    return written.rpartition(_MARK)[2] or None if written and _MARK in written else None


# The errors that several engines raise.


def nothing_to_continue(endpoint: str) -> InvalidRequestError:
    """Create the error for an empty prompt and text, if the model has no beginning of sequence."""
    words = "prompt and text are empty, and the model has no beginning-of-sequence token to continue from"
    return InvalidRequestError(words, endpoint=endpoint)


def broken_off(endpoint: str) -> ResponseError:
    """Create the error for a stream that ended before the answer was complete."""
    return ResponseError("the stream ended before the answer did", endpoint=endpoint, retryable=True)


def silent(endpoint: str) -> ResponseError:
    """Create the error for an answer that has neither a token nor a reason for its end."""
    words = "the server stopped without a token and without a reason"
    return ResponseError(words, endpoint=endpoint, retryable=True)


def miscounted(asked: int, answered: int, endpoint: str, *, what: str = "prompts were sent") -> ResponseError:
    """Create the error for a list of prompts that received too few or too many answers."""
    return ResponseError(f"{asked} {what}, {answered} answered", endpoint=endpoint, retryable=True)


def no_probs(field: str, endpoint: str, *, hint: str = "") -> UnsupportedError:
    """Create the error for an answer without the requested probabilities."""
    words = f"the server gives no probabilities with its tokens, although asked ({field})"
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


def own_stop(endpoint: str, *, hint: str = "Start it without stop strings.") -> UnsupportedError:
    """Create the error for an answer that ended at a stop string from the server's own settings."""
    return UnsupportedError(
        "the server stops at a text of its own, which no request can undo", endpoint=endpoint, hint=hint
    )
