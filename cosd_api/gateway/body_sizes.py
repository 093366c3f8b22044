"""Sizes of bodies: the most bytes of a body, the places that it takes, and the values that it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cosd_api.gateway.config import GatewayLimits

__all__ = ["PLACE_BYTES", "BodyLimit", "body_limit", "count_values", "places"]

PLACE_BYTES = 65_536
"""Bytes of a body for each place. So all bodies in progress together have fewer than `concurrency` times as many."""

_MOST = 4_000_000
_LEAST = 65_536  # for everything besides prompts, such as labels
_OF_A_TOKEN = 64  # bytes. A token of ten letters that JSON writes as \uXXXX has 60; tokens of any prose have less


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The most that a body may have.

    Attributes:
        bytes: the most bytes.
        why: the reason, as the end of a sentence.
    """

    bytes: int
    why: str = "the most that is taken here"

    @property
    def words(self) -> str:
        """The words of a refusal."""
        return f"the body has more than {self.bytes} bytes, {self.why}"


def body_limit(limits: GatewayLimits, rooms: Iterable[int | None], prompts: int) -> BodyLimit:
    """The most that the body of a request may have.

    The settings decide. Without a setting, the limit follows from prompts that fit into the models' contexts. A fusion
    takes a prompt that fits into its smallest context. Only the body names the requested fusion, so the fusion with the
    most room counts.

    Args:
        limits: limits of the gateway.
        rooms: for each fusion, the most tokens that a prompt may have; None if the number is not known (yet).
        prompts: number of prompts that one request may have.
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
    """The places that a body of `size` bytes takes: at most all of them, so that a lone request always has enough."""
    return min(1 + size // PLACE_BYTES, concurrency)


def count_values(data: bytes, most: int) -> int:
    """Count the values of a JSON text before it is parsed, as parsing takes a hundred times as long.

    Args:
        data: the text; for invalid JSON the count is useless.
        most: the largest number that matters.

    Returns:
        The number of values; for more than `most`, any number above it. An empty list that contains white space counts
        twice.
    """
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    outside = plain.split(b'"', 4 * most)[::2]  # of strings: a value has at most two, itself and its name
    if len(outside) > 2 * most:
        return most + 1
    begun = sum(part.count(b",") + part.count(b"[") + part.count(b"{") for part in outside)
    return 1 + begun - sum(part.count(b"[]") + part.count(b"{}") for part in outside)
