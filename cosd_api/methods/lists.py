"""Lists of the most probable tokens at a place, as endpoints report them."""

from __future__ import annotations

import math

from cosd_providers.contract import Token

ROUNDING = 1e-9
"""Two means count as equal up to this relative difference, which may be due to rounding."""

Key = tuple[bytes, bool]
"""A token's bytes, and whether it is the end of sequence."""


def key_of(token: Token) -> Key:
    """Return the token's bytes, and whether it is the end of sequence."""
    return token.data, token.end


def is_joined(token: Token) -> bool:
    """Test whether a token was joined from several tokens that together make up one character.

    A joined token has no alternatives. An ordinary token may also have none, if the endpoint does not know the text of
    the next most probable token. ASCII text never counts as joined, because an ASCII character is never split.
    """
    return token.prob is None or (token.prob < 1 and not token.alternatives and not token.data.isascii())


def most_probable(token: Token) -> list[Token]:
    """Return the most probable token at the place of `token`, or several tokens that are equally probable.

    The list is empty if the most probable token is unknown, because an unlisted token may be more probable.
    """
    if is_joined(token):
        return []
    listed = [one for one in (token, *token.alternatives) if one.prob is not None]
    best = max(one.prob or 0.0 for one in listed)
    rest = 1 - math.fsum(one.prob or 0.0 for one in listed)
    return [one for one in listed if one.prob == best] if best > rest else []


def probs_of(token: Token | None) -> dict[Key, float]:
    """Return the probabilities of a token and its alternatives, in the model's order."""
    return {} if token is None else {key_of(one): one.prob or 0.0 for one in (token, *token.alternatives)}
