"""Sizes of request bodies: the maximum number of bytes, the places that a body takes, and the number of JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cosd_api.apps.gateway.config import GatewayLimits

__all__ = ["PLACE_BYTES", "BodyLimit", "body_limit", "count_values", "places"]

PLACE_BYTES = 65_536
"""Number of bytes of a body for which a request takes one place.

All bodies in progress together have fewer than `concurrency * PLACE_BYTES` bytes, unless one body takes all places.
"""

_MOST = 4_000_000
_LEAST = 65_536  # bytes allowed for everything except the prompts, such as field names
_OF_A_TOKEN = 64  # bytes allowed per token: ten letters written as \uXXXX take 60, and tokens of prose are shorter


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Limit on the size of a body.

    Attributes:
        bytes: the maximum number of bytes.
        why: the reason for the maximum, as the end of a sentence.
    """

    bytes: int
    why: str = "the most that is taken here"

    @property
    def words(self) -> str:
        """The error message for a body that is too large."""
        return f"the body has more than {self.bytes} bytes, {self.why}"


def body_limit(limits: GatewayLimits, rooms: Iterable[int | None], prompts: int) -> BodyLimit:
    """Return the limit on the size of a request's body.

    If the settings contain no limit, the limit follows from the longest prompts that fit into the models' contexts. It
    is the same for all fusions, because only the body itself says which fusion is requested.

    Args:
        limits: limits of the gateway.
        rooms: the maximum number of tokens in a prompt, for each fusion; None if it is not (yet) known.
        prompts: maximum number of prompts in one request.
    """
    if limits.body_bytes is not None:
        return BodyLimit(limits.body_bytes)
    known = [*rooms]
    room = max((room or 0 for room in known), default=0)
    fits = _LEAST + _OF_A_TOKEN * room * prompts
    if None in known or not known or fits >= _MOST:
        return BodyLimit(_MOST)
    each = "a prompt" if prompts == 1 else "each prompt"
    return BodyLimit(fits, f"and the models take at most {room} tokens of {each}")


def places(size: int, concurrency: int) -> int:
    """Return the number of places that a body of `size` bytes takes.

    The number never exceeds the total number of places, so that a single request can always be served.
    """
    return min(1 + size // PLACE_BYTES, concurrency)


def count_values(data: bytes, most: int) -> int:
    """Count the values in a JSON text without parsing it, because parsing would take a hundred times as long.

    Args:
        data: the text; if it is not valid JSON, the count is meaningless.
        most: the number above which the count need not be exact.

    Returns:
        The number of values, or any number above `most` if there are more than `most`. An empty list or object with
        white space between its brackets counts twice.
    """
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside = plain.split(b'"', 4 * most)[::2]  # parts outside strings; a value has at most two strings: name and value
    if len(outside) > 2 * most:
        return most + 1
    begun = sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in outside)
    return 1 + begun - sum(part.count(b"[]") + part.count(b"{}") for part in outside)
