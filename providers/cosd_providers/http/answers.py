"""The answer to an HTTP request, independent of the HTTP library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol


class HttpAnswer(Protocol):
    """An answer whose body has not been read yet. It has those members of `httpx.Response` that this library uses."""

    @property
    def status_code(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers. Names are not case-sensitive."""
        ...

    @property
    def is_success(self) -> bool:
        """True if the status is 2xx."""
        ...

    @property
    def has_redirect_location(self) -> bool:
        """True if the answer is a redirect with a target."""
        ...

    def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Return an async generator that yields the body as it arrives.

        Raises:
            httpx.HTTPError: the connection broke, or no further bytes arrived in time.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection or, if the whole answer has been read, keep it. This takes time only with httpx."""
        ...
