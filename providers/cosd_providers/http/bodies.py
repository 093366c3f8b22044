"""The bodies of answers, none of which may be without end. Knows no HTTP library."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Protocol, cast

__all__ = ["LINES", "LONGEST", "LONGEST_ERROR", "Body", "Measured", "TooLongError", "beginning", "lines"]

LINES = "application/x-ndjson"
"""The content type of a stream with one JSON object on each line."""

LONGEST = 64 << 20
"""Bytes of an answer, or characters of one event."""

LONGEST_ERROR = 64 << 10
"""Bytes that are read of an answer without success."""


class Body(Protocol):
    """What is read of an HTTP response."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in any case."""
        ...

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        """The bytes, unpacked."""
        ...

    def aiter_text(self) -> AsyncIterator[str]:
        """The same as text."""
        ...


class TooLongError(Exception):
    """There is more than can be taken."""


async def beginning(body: Body, limit: int) -> tuple[str, bool]:
    """The text of an answer, at most `limit` bytes of it, and whether that is all."""
    parts: list[bytes] = []
    left = limit
    async with aclosing(cast("AsyncGenerator[bytes]", body.aiter_bytes())) as chunks:  # it is a generator
        async for part in chunks:
            parts.append(part[:left])
            left -= len(part)
            if left < 0:
                break
    return b"".join(parts).decode(errors="replace"), left >= 0


class Measured:
    """The text of a stream of events, as far as no event is too long; set `size` to 0 after each.

    Raises:
        TooLongError: one is.
    """

    def __init__(self, body: Body) -> None:
        self.headers = body.headers
        self.size = 0
        self._body = body

    async def aiter_text(self) -> AsyncGenerator[str]:
        """The text in the pieces in which it comes."""
        async for text in self._body.aiter_text():
            self.size += len(text)
            if self.size > LONGEST:
                raise TooLongError
            yield text


async def lines(body: Measured) -> AsyncGenerator[str]:
    """The lines of a stream. Only a newline ends one: what stands behind the last is a line that was cut off."""
    parts: list[str] = []
    async with aclosing(body.aiter_text()) as texts:
        async for text in texts:
            first, *more = text.split("\n")
            parts.append(first)
            for begun in more:
                yield "".join(parts)
                parts = [begun]
