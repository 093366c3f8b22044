"""Sizes of bodies: the maximum number of bytes, the places that a body takes, and the number of JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cosd_api.gateway.config import GatewayLimits

__all__ = ["PLACE_BYTES", "BodyLimit", "body_limit", "count_values", "places"]

PLACE_BYTES = 65_536
"""Bytes of a body for each place. All bodies in progress together have fewer than `concurrency * PLACE_BYTES` bytes,
unless one body takes all places.
"""

_MOST = 4_000_000
_LEAST = 65_536  # bytes for everything except prompts, such as labels
_OF_A_TOKEN = 64  # bytes: ten letters written as \uXXXX in JSON take 60, and the tokens of any prose are shorter


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Limit on the size of a body.

    Attributes:
        bytes: the maximum number of bytes.
        why: the reason, as the end of a sentence.
    """

    bytes: int
    why: str = "the most that is taken here"

    @property
    def words(self) -> str:
        """The message of a refusal."""
        return f"the body has more than {self.bytes} bytes, {self.why}"


def body_limit(limits: GatewayLimits, rooms: Iterable[int | None], prompts: int) -> BodyLimit:
    """The limit on the size of a request's body.

    If the settings have none, the limit follows from the longest prompts that fit into the models' contexts. Since only
    the body itself names the requested fusion, the fusion with the most room counts.

    Args:
        limits: limits of the gateway.
        rooms: for each fusion, the maximum number of tokens in a prompt; None if it is not known (yet).
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
    """The number of places that a body of `size` bytes takes: at most all, so that a lone request always has enough."""
    return min(1 + size // PLACE_BYTES, concurrency)


def count_values(data: bytes, most: int) -> int:
    """Count the values of a JSON text without parsing it, which would take a hundred times as long.

    Args:
        data: the text; if it is not valid JSON, the count is meaningless.
        most: the largest number that matters.

    Returns:
        The number of values; if there are more than `most`, any number above `most`. An empty list that contains white
        space counts twice.
    """
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside = plain.split(b'"', 4 * most)[::2]  # outside of strings; a value has at most two, itself and its name
    if len(outside) > 2 * most:
        return most + 1
    begun = sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in outside)
    return 1 + begun - sum(part.count(b"[]") + part.count(b"{}") for part in outside)
