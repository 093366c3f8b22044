"""The search for a token that a caller allows, e.g. because a grammar accepts it, in longer and longer lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from cosd_providers.contract import AllowedTokens, Provider, Token
from cosd_providers.errors import UnsupportedError

LISTED = 20
"""Number of tokens among which structured answers look for an allowed one first, if the server lists that many."""

_FIRST, _STEP = 500, 10  # the length of the first list, and how many times as long each further list is


def is_allowed(token: Token, allowed: Callable[[bytes], bool]) -> bool:
    """True if a token is allowed. A token without bytes that does not end the sequence never is."""
    return bool(token.data or token.end) and allowed(token.data)


async def search(
    ask: Callable[[int], Awaitable[Token | None]], allowed: Callable[[bytes], bool], most: int
) -> list[Token]:
    """Request longer and longer lists of next tokens until one has an allowed token; see `contract.AllowedTokens`.

    Args:
        ask: a function that requests a given number of most probable tokens, and returns the first with the others as
            its alternatives; None if the context is full.
        allowed: the caller's function.
        most: the length of the longest list.
    """
    count, seen = 0, 0
    while count < most:
        count = min(count * _STEP or _FIRST, most)
        first = await ask(count)
        if first is None:
            return []
        found = [replace(first, alternatives=()), *first.alternatives]
        if any(is_allowed(token, allowed) for token in found[seen:]):
            return found
        seen = len(found)
        if seen < count:  # the other tokens have a probability of zero
            break
    return []


def by_allowed(provider: Provider) -> AllowedTokens:
    """Return the provider if it can search for an allowed token; otherwise raise `UnsupportedError`."""
    if isinstance(provider, AllowedTokens):
        return provider
    raise none_allowed(provider.name)


def none_allowed(
    endpoint: str, hint: str = "Use a server that finds allowed tokens (docs/servers.md)."
) -> UnsupportedError:
    """Create the error for a server that lists no allowed token, and cannot list more tokens."""
    words = "none of the tokens that the server lists is allowed here, and it cannot list more"
    return UnsupportedError(words, endpoint=endpoint, hint=hint)
