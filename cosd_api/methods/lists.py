"""Lists of the most probable tokens at a place, as endpoints report them."""

from __future__ import annotations

import math

from cosd_api.methods.base import Models
from cosd_providers.contract import Token
from cosd_providers.errors import UnsupportedError

ROUNDING = 1e-9
"""Two means count as equal up to this relative difference, which may be due to rounding."""

Key = tuple[bytes, bool]
"""A token's bytes, and whether it is the end of sequence."""


def lists_needed(models: Models, method: str, *, others: int = 1) -> None:
    """Check that every model lists its most probable tokens, including the end of sequence.

    Args:
        models: the models, with information about their servers.
        method: the name of the method that needs the lists.
        others: the number of tokens that the method needs in addition to the most probable one.

    Raises:
        UnsupportedError: a model lists no tokens or too few, or does not list the end of sequence.
    """
    for name, info in models:
        can = info.capabilities
        if not can.probs or not can.top_k:
            missing = f"does not list its most probable tokens, which {method!r} compares"
        elif can.top_k < others:
            missing = f"lists at most {1 + can.top_k} tokens, and {method!r} needs the {1 + others} most probable ones"
        elif not can.end_prob:
            missing = f"does not report the probability of its end of sequence, which {method!r} compares, too"
        else:
            continue
        hint = 'method="cosd" needs no lists, and with AgreementVerifier(alpha=0.5) no probabilities of the assistant.'
        raise UnsupportedError(f"the {name} {missing}", endpoint=info.endpoint, hint=hint)


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
