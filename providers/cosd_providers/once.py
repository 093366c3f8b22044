"""Something that is found out once, however many ask for it at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

__all__ = ["Once"]

_T = TypeVar("_T")


class Once(Generic[_T]):
    """Keeps what was found. A failure is not kept: who asks next tries again. Copies have nothing and find out anew.

    Attributes:
        found: what was found; None before.
    """

    def __init__(self) -> None:
        self.found: _T | None = None
        self._locks: dict[object, anyio.Lock] = {}  # a lock belongs to one event loop

    async def get(self, find: Callable[[], Awaitable[_T]]) -> _T:
        """What `find` gives the first time that it succeeds; the others in this event loop wait for it."""
        if self.found is None:
            async with self._locks.setdefault(current_token(), anyio.Lock()):
                if self.found is None:
                    found = await find()
                    self.found = found if self.found is None else self.found  # another loop may have been faster
            self._locks.clear()
        return self.found

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: a lock cannot be copied, and what was found may not hold elsewhere."""
        return {"found": None, "_locks": {}}
