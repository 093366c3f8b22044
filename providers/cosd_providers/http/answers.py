"""The answer to a request, by any carrier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

__all__ = ["HttpAnswer"]


class HttpAnswer(Protocol):
    """An answer whose body is still to be read: the part of an `httpx.Response` that this library uses."""

    @property
    def status_code(self) -> int:
        """Its status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers, by names in any case."""
        ...

    @property
    def is_success(self) -> bool:
        """True for a status of success."""
        ...

    @property
    def has_redirect_location(self) -> bool:
        """True if the server redirects, with a target."""
        ...

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        """The body as it arrives: a generator.

        Raises:
            httpx.HTTPError: the connection broke, or no more bytes came in time.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection, or keep it if all of the answer was read. httpx's answers may wait for that."""
        ...
