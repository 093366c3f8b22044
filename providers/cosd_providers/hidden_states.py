"""Hidden states of a draft: requested stretch by stretch, and attached to its tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, TypeAlias

from cosd_providers.contract import DraftEnd, HiddenStates, Provider, State, Token
from cosd_providers.errors import ContextLengthError, UnsupportedError

__all__ = ["SEARCH", "STRETCH", "StatesAfter", "by_states", "no_states", "with_states"]

STRETCH = 16
"""Tokens of a draft whose states are requested together, at most: the server reads everything before them once."""

SEARCH = 2 * (STRETCH.bit_length() - 1)
"""Further requests of a draft, at most, if the server refuses a text as too long: a stretch is halved until the longest
text that it takes is found."""

StatesAfter: TypeAlias = Callable[[Sequence[int], int], Awaitable[Sequence[State]]]
"""Function of raw ids of a draft and a number: this number of last states, ending with the state after all ids."""


class DraftedIds(Protocol):
    """The raw ids of a draft's tokens, as in `greedy.Draft`."""

    @property
    def ids(self) -> Sequence[int]:
        """The ids."""
        ...

    @property
    def starts(self) -> Sequence[int]:
        """For each token, the index of its first raw token among `ids`."""
        ...


async def with_states(
    items: AsyncGenerator[Token | DraftEnd, None], draft: DraftedIds, states: StatesAfter
) -> AsyncGenerator[Token | DraftEnd, None]:
    """Pass a draft's items on, each token with its state; the server keeps writing while states are requested.

    Args:
        items: the draft's tokens, and its end.
        draft: has the ids of all tokens that have come.
        states: requests states.

    Raises:
        ContextLengthError: the server cannot read everything before a token at once. Earlier tokens were yielded.
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
                    size = len(starts) // 2  # its first half may fit, and may be enough
                    continue
                for token, start in zip(held, starts, strict=False):
                    yield replace(token, state=found[start - starts[0]])
                given, held = given + len(starts), held[len(starts) :]
            if isinstance(item, DraftEnd):
                yield item


def by_states(provider: Provider, hint: str = "") -> HiddenStates:
    """The provider, which has to report hidden states.

    Raises:
        UnsupportedError: it does not report them.
    """
    if isinstance(provider, HiddenStates):
        return provider
    raise no_states(provider.name, hint)


def no_states(endpoint: str, hint: str) -> UnsupportedError:
    """The error of a server that does not report hidden states."""
    return UnsupportedError("the server does not report the model's hidden states", endpoint=endpoint, hint=hint)
