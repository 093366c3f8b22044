"""Base of providers that stand before another one and change what it is asked, or what it says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

from cosd_providers.contract import (
    Alive,
    Context,
    DraftEnd,
    HiddenStates,
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
)
from cosd_providers.errors import UnsupportedError
from cosd_providers.hidden_states import no_states
from cosd_providers.messages import ChatProvider, Message, OnSpecialTokens, OwnMessages, RenderedPrompt
from cosd_providers.same_ids import by_ids
from cosd_providers.usage import Usage

__all__ = ["Forwarding", "ForwardingProvider"]


class Forwarding:
    """All of a provider but its answers, handed on as it is; a subclass has `generate`, `propose` and `score`.

    Args:
        provider: the provider that answers.
    """

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    @property
    def name(self) -> str:
        """The provider's."""
        return self._provider.name

    async def __aenter__(self) -> Self:
        await self._provider.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._provider.__aexit__(*exc)

    async def describe(self) -> ServerInfo:
        """The provider's description; by ids it would answer without this one in between."""
        info = await self._provider.describe()
        return replace(info, capabilities=replace(info.capabilities, ids=False))

    async def keep_ready(self) -> bool | None:
        """See `contract.Ready`."""
        return await self._provider.keep_ready() if isinstance(self._provider, Ready) else False

    async def word_splitter(self) -> WordEnds | None:
        """See `contract.WordSplitter`: the words of a text by itself."""
        return await self._provider.word_splitter() if isinstance(self._provider, WordSplitter) else None

    async def tokenize(self, text: str) -> list[Piece]:
        """See `contract.Provider`."""
        return await self._provider.tokenize(text)


class ForwardingProvider(Forwarding):
    """All of a provider, its answers too: the base of your own wrappers. Override what is to be different::

        class Logged(ForwardingProvider):
            def generate(self, context, **options):
                print(len(context.text))
                return super().generate(context, **options)

    A conversation is answered by a copy of the wrapper around the endpoint's view of it. Models with the same ids are
    asked by `generate` and `next_tokens`, others by `generate`, `propose` and `score`: override all that concern you. A
    class with `__getattr__` alone is refused, as Python looks up `__aenter__` and `__aexit__` past it.

    Args:
        provider: the provider that answers.
    """

    async def describe(self) -> ServerInfo:
        """The provider's description."""
        return await self._provider.describe()

    @property
    def own_messages(self) -> tuple[Message, ...]:
        """See `messages.OwnMessages`."""
        return self._provider.own_messages if isinstance(self._provider, OwnMessages) else ()

    async def check_alive(self) -> None:
        """See `contract.Alive`."""
        if isinstance(self._provider, Alive):
            await self._provider.check_alive()

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """See `messages.ChatProvider`.

        Raises:
            UnsupportedError: the provider takes no messages.
        """
        if not isinstance(self._provider, ChatProvider):
            raise UnsupportedError("the provider takes no messages: it has no render_prompt()", endpoint=self.name)
        turn = await self._provider.render_prompt(messages, on_special_tokens=on_special_tokens)
        around = copy(self)
        around._provider = turn.provider
        return replace(turn, provider=around)

    def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.Provider`."""
        return self._provider.generate(context, **options)

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, **options: Any
    ) -> list[Proposal | None]:
        """See `contract.Provider`."""
        return await self._provider.propose(context, questions, **options)

    async def score(self, context: Context, **options: Any) -> list[Token]:
        """See `contract.Provider`."""
        return await self._provider.score(context, **options)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """See `contract.IdContexts`."""
        return await by_ids(self._provider).next_tokens(contexts, alternatives=alternatives, usage=usage)

    async def encode(self, text: str) -> list[Piece]:
        """See `contract.IdContexts`."""
        return await by_ids(self._provider).encode(text)

    async def decode(self, ids: Sequence[int]) -> str:
        """See `contract.IdContexts`."""
        return await by_ids(self._provider).decode(ids)

    def generate_with_states(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `contract.HiddenStates`."""
        return self._with_states().generate_with_states(context, **options)

    async def hidden_states(self, context: Context, *, usage: Usage) -> dict[int, State]:
        """See `contract.HiddenStates`."""
        return await self._with_states().hidden_states(context, usage=usage)

    def _with_states(self) -> HiddenStates:
        if isinstance(self._provider, HiddenStates):
            return self._provider
        raise no_states(self.name, "The provider behind this one has no hidden_states().")
