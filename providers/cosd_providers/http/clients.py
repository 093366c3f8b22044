"""One client for each event loop, closed when its last user leaves. Knows no HTTP library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import anyio
from anyio.lowlevel import current_token

__all__ = ["Client", "Clients"]


class Client(Protocol):
    """What a client of any library is here."""

    @property
    def is_closed(self) -> bool:
        """Whether it can no longer be used."""
        ...

    async def aclose(self) -> None:
        """Closes its connections."""
        ...


_C = TypeVar("_C", bound=Client)


class Clients(Generic[_C]):
    """The clients of the event loops, and how many use them."""

    def __init__(self) -> None:
        self._clients: dict[object, _C] = {}
        self._users: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self) -> None:
        """One user more in this event loop."""
        loop = current_token()
        self._users[loop] = self._users.get(loop, 0) + 1

    async def leave(self) -> None:
        """One user less; the last one closes the client."""
        loop = current_token()
        self._users[loop] -= 1
        if not self._users[loop]:
            del self._users[loop]
            client = self._clients.pop(loop, None)
            if client is not None:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    def of_this_loop(self, make: Callable[[], _C]) -> _C:
        """The client of this event loop, made when first needed."""
        loop = current_token()
        client = self._clients.get(loop)
        if client is None or client.is_closed:
            client = self._clients[loop] = make()
        return client
