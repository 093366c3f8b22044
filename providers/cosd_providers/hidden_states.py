"""The hidden states of a draft, which are requested for several tokens at a time and attached to the tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, TypeAlias

from cosd_providers.contract import DraftEnd, HiddenStates, Provider, State, Token
from cosd_providers.errors import ContextLengthError, UnsupportedError

__all__ = ["SEARCH", "STRETCH", "StatesAfter", "by_states", "no_states", "with_states"]

STRETCH = 16
"""The greatest number of a draft's tokens whose states are requested together.

For each request, the server reads all earlier tokens once more.
"""

SEARCH = 2 * (STRETCH.bit_length() - 1)
"""The greatest number of additional requests if the server refuses a text as too long.

The number of tokens per request is halved whenever the server refuses the text.
"""

StatesAfter: TypeAlias = Callable[[Sequence[int], int], Awaitable[Sequence[State]]]
"""A function that accepts a draft's raw ids and a number n, and returns the last n states, up to that after all ids."""


class DraftedIds(Protocol):
    """The raw ids of a draft's tokens, as in `greedy.Draft`."""

    @property
    def ids(self) -> Sequence[int]:
        """The raw ids so far."""
        ...

    @property
    def starts(self) -> Sequence[int]:
        """For each token, the index of its first raw token among `ids`."""
        ...


async def with_states(
    items: AsyncGenerator[Token | DraftEnd, None], draft: DraftedIds, states: StatesAfter
) -> AsyncGenerator[Token | DraftEnd, None]:
    """Yield the items of a draft, each token with its state. The server continues to write while states are requested.

    Args:
        items: the draft's tokens, followed by its end.
        draft: the ids of all tokens that have arrived so far.
        states: a function that requests states.

    Raises:
        ContextLengthError: the text before a token is too long for one request. All earlier tokens have been yielded.
    """
    held: list[Token] = []
    given = 0
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Token):
                held.append(item)
                if len(held) < STRETCH:
                    continue
            size = len(held)
            while held:
                starts = draft.starts[given : given + min(size, len(held))]
                try:
                    found = await states(draft.ids[: starts[-1]], starts[-1] - starts[0] + 1)
                except ContextLengthError:
                    if len(starts) == 1:
                        raise
                    size = len(starts) // 2  # the first half of the tokens may fit
                    continue
                for token, start in zip(held, starts, strict=False):
                    yield replace(token, state=found[start - starts[0]])
                given, held = given + len(starts), held[len(starts) :]
            if isinstance(item, DraftEnd):
                yield item


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
