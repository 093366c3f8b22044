"""The base class of providers that wrap another provider and change its requests or its answers."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Self

from cosd_providers.contract import (
    HiddenStates,
    Piece,
    Provider,
    Ready,
    ServerInfo,
    WordEnds,
    WordSplitter,
    token_count,
)
from cosd_providers.errors import UnsupportedError

__all__ = ["Forwarding", "by_states", "no_states"]


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

    async def tokenize(self, text: str) -> list[Piece]:
        """See `contract.Provider`."""
        return await (await self._wrapped()).tokenize(text)

    async def count_tokens(self, text: str) -> int:
        """See `contract.TokenCounts`."""
        return await token_count(await self._wrapped(), text)


def by_states(provider: Provider, hint: str = "") -> HiddenStates:
    """Return the provider if it can report hidden states.

    Raises:
        UnsupportedError: the provider cannot report hidden states; the error has this `hint`.
    """
    if isinstance(provider, HiddenStates):
        return provider
    raise no_states(provider.name, hint)


def no_states(endpoint: str, hint: str) -> UnsupportedError:
    """Create the error for a server that does not report hidden states."""
    return UnsupportedError("the server does not report the model's hidden states", endpoint=endpoint, hint=hint)
