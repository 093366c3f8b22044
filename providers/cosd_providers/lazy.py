"""A value found by an async function at its first use, however many tasks ask for it at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

__all__ = ["Lazy"]

_T = TypeVar("_T")


class Lazy(Generic[_T]):
    """An async value that is found once. A failure is not kept: the next caller tries again. Copies start empty.

    Attributes:
        found: the value; None before it was found.
    """

    def __init__(self) -> None:
        self.found: _T | None = None
        self._locks: dict[object, anyio.Lock] = {}  # a lock belongs to one event loop

    async def get(self, find: Callable[[], Awaitable[_T]]) -> _T:
        """Return the value, calling `find` if there is none yet. Other tasks of this event loop wait meanwhile."""
        if self.found is None:
            async with self._locks.setdefault(current_token(), anyio.Lock()):
                if self.found is None:
                    found = await find()
                    self.found = found if self.found is None else self.found  # another loop may have been faster
            self._locks.clear()
        return self.found

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: locks cannot be copied, and the value may not hold elsewhere."""
        return {"found": None, "_locks": {}}
