"""The base classes of providers that wrap another provider and change its requests or its answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from typing import Any, Self

from cosd_providers.allowed import by_allowed
from cosd_providers.contract import (
    Alive,
    Context,
    DraftEnd,
    HiddenStates,
    IdContexts,
    IdScores,
    KnownVocabulary,
    Piece,
    Proposal,
    Provider,
    Question,
    Ready,
    ServerInfo,
    State,
    Token,
    WordEnds,
    WordSplitter,
    token_count,
)
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import (
    ChatProvider,
    Message,
    OnSpecialTokens,
    OwnMessages,
    RenderedPrompt,
    ToolSample,
    ToolTemplate,
)
from cosd_providers.usage import Usage


def by_ids(provider: Provider) -> IdContexts:
    """Return the provider if it accepts contexts by ids; otherwise raise `UnsupportedError`."""
    if isinstance(provider, IdContexts):
        return provider
    raise UnsupportedError("the provider takes no contexts by ids: it has no next_tokens()", endpoint=provider.name)


def by_given_ids(provider: Provider) -> IdScores:
    """Return the provider if it can report the probabilities of given ids; otherwise raise `UnsupportedError`."""
    if isinstance(provider, IdScores):
        return provider
    raise UnsupportedError("the provider scores no ids: it has no score_ids()", endpoint=provider.name)


def by_states(provider: Provider, hint: str = "") -> HiddenStates:
    """Return the provider if it can report hidden states; otherwise raise `UnsupportedError` with this `hint`."""
    if isinstance(provider, HiddenStates):
        return provider
    raise no_states(provider.name, hint)


def no_states(endpoint: str, hint: str) -> UnsupportedError:
    """Create the error for a server that does not report hidden states."""
    return UnsupportedError("the server does not report the model's hidden states", endpoint=endpoint, hint=hint)


class Forwarding:
    """A wrapper that forwards everything except answers: a subclass defines `generate`, `propose` and `score`.

    Args:
        provider: the wrapped provider.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def around(self, provider: Provider) -> Self:
        """Return a copy of this wrapper around another provider."""
        view = copy(self)
        view._provider = provider
        return view

    @property
    def name(self) -> str:
        """The wrapped provider's name."""
        return self._provider.name

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._provider.__aexit__(*exc)

    async def _wrapped(self) -> Provider:
        """Return the provider that receives the calls."""
        return self._provider

    async def describe(self) -> ServerInfo:
        """Describe the wrapped provider, but without contexts by ids: calls with ids would bypass this wrapper."""
        info = await (await self._wrapped()).describe()
        return replace(info, capabilities=replace(info.capabilities, ids=False))

    async def keep_ready(self) -> bool | None:
        """See `contract.Ready`."""
        return await self._provider.keep_ready() if isinstance(self._provider, Ready) else False

    async def word_splitter(self) -> WordEnds | None:
        """See `contract.WordSplitter`."""
        provider = await self._wrapped()
        return await provider.word_splitter() if isinstance(provider, WordSplitter) else None

    async def crossing_token(self) -> bytes | None:
        """See `contract.KnownVocabulary`."""
        provider = await self._wrapped()
        return await provider.crossing_token() if isinstance(provider, KnownVocabulary) else None

    async def tokenize(self, text: str) -> list[Piece]:
        """See `contract.Provider`."""
        return await (await self._wrapped()).tokenize(text)

    async def count_tokens(self, text: str) -> int:
        """See `contract.TokenCounts`."""
        return await token_count(await self._wrapped(), text)


class ForwardingProvider(Forwarding):
    """The base class for your own wrappers, which forwards every call to a provider. Override the methods to change::

        class Logged(ForwardingProvider):
            def generate(self, context, **options):
                print(len(context.text))
                return super().generate(context, **options)

    To answer a conversation, the wrapper is copied around the provider that `render_prompt` returns.

    A fusion calls `generate`, `next_tokens` and `score_ids` if the models share the same token ids, and `generate`,
    `propose` and `score` if they do not, so override every method that your change affects. A class that only defines
    `__getattr__` is refused, because Python does not use `__getattr__` to find `__aenter__` and `__aexit__`.

    Args:
        provider: the wrapped provider.
    """

    _no_states = "The provider behind this one has no hidden_states()."

    async def describe(self) -> ServerInfo:
        """Describe the wrapped provider."""
        return await (await self._wrapped()).describe()

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """See `messages.OwnMessages`."""
        return self._provider.own_messages if isinstance(self._provider, OwnMessages) else ()

    async def check_alive(self) -> None:
        """See `contract.Alive`."""
        provider = await self._wrapped()
        if isinstance(provider, Alive):
            await provider.check_alive()

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """See `messages.ChatProvider`.

        Raises:
            UnsupportedError: the wrapped provider does not accept messages.
        """
        if not isinstance(self._provider, ChatProvider):
            raise UnsupportedError("the provider takes no messages: it has no render_prompt()", endpoint=self.name)
        turn = await self._provider.render_prompt(messages, on_special_tokens=on_special_tokens)
        led = None if turn.led is None else self.around(turn.led)
        return replace(turn, provider=self.around(turn.provider), led=led)

    async def tool_sample(self) -> ToolSample:
        """See `messages.ToolTemplate`."""
        provider = await self._wrapped()
        return await provider.tool_sample() if isinstance(provider, ToolTemplate) else ToolSample()

    async def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.Provider`."""
        async with aclosing((await self._wrapped()).generate(context, **options)) as draft:
            async for item in draft:
                yield item

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, **options: Any
    ) -> list[Proposal | None]:
        """See `contract.Provider`."""
        return await (await self._wrapped()).propose(context, questions, **options)

    async def score(self, context: Context, **options: Any) -> list[Token]:
        """See `contract.Provider`."""
        return await (await self._wrapped()).score(context, **options)

    async def score_ids(self, context: Context, first: int, **options: Any) -> list[Token]:
        """See `contract.IdScores`."""
        return await by_given_ids(await self._wrapped()).score_ids(context, first, **options)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """See `contract.IdContexts`."""
        return await by_ids(await self._wrapped()).next_tokens(contexts, alternatives=alternatives, usage=usage)

    async def list_allowed(self, context: Context, allowed: Callable[[bytes], bool], *, usage: Usage) -> list[Token]:
        """See `contract.AllowedTokens`."""
        return await by_allowed(await self._wrapped()).list_allowed(context, allowed, usage=usage)

    async def encode(self, text: str) -> list[Piece]:
        """See `contract.IdContexts`."""
        return await by_ids(await self._wrapped()).encode(text)

    async def decode(self, ids: Sequence[int]) -> str:
        """See `contract.IdContexts`."""
        return await by_ids(await self._wrapped()).decode(ids)

    async def generate_with_states(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.HiddenStates`."""
        provider = by_states(await self._wrapped(), self._no_states)
        async with aclosing(provider.generate_with_states(context, **options)) as draft:
            async for item in draft:
                yield item

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """See `contract.HiddenStates`."""
        return await by_states(await self._wrapped(), self._no_states).hidden_states(context, usage=usage)
