"""Something that is found out once, however many ask for it at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

__all__ = ["Once"]

_T = TypeVar("_T")


class Once(Generic[_T]):
    """Keeps what was found. A failure is not kept: who asks next tries again. Copies have nothing and find out anew.

    Attributes:
        found: what was found; None before.
    """

    def __init__(self) -> None:
        self.found: _T | None = None
        self._lock: anyio.Lock | None = None

    async def get(self, find: Callable[[], Awaitable[_T]]) -> _T:
        """What `find` gives the first time that it succeeds; the others wait for it."""
        if self.found is None:
            self._lock = self._lock or anyio.Lock()
            async with self._lock:
                if self.found is None:
                    self.found = await find()
        return self.found

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: a lock cannot be copied, and what was found may not hold elsewhere."""
        return {"found": None, "_lock": None}
