"""Simultaneous tasks: several requests to one server, and one value for all callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

__all__ = ["Lazy", "concurrently"]

_AT_ONCE = 8  # requests in progress

_T = TypeVar("_T")


async def concurrently(jobs: Sequence[Callable[[], Awaitable[_T]]], at_once: int = _AT_ONCE) -> list[_T]:
    """The results of all jobs, in order; up to `at_once` run at a time. The first error ends them all.

    Raises:
        Exception: that error itself, not in a group; the library's own jobs raise a `ProviderError`.
    """
    if len(jobs) < 2:
        return [await job() for job in jobs]  # a task would cost more than it saves
    results: dict[int, _T] = {}
    failed: list[Exception] = []
    limiter = anyio.CapacityLimiter(at_once)

    async def run(at: int) -> None:
        async with limiter:
            try:
                results[at] = await jobs[at]()
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for at in range(len(jobs)):
            group.start_soon(run, at)
    if failed:
        raise failed[0]
    return [results[at] for at in range(len(jobs))]


class Lazy(Generic[_T]):
    """An async value that is found once. A failure is not kept: the next caller tries again. Copies start empty.

    Attributes:
        found: the value; None before its discovery.
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
        """Nothing: locks cannot be copied, and the value may be wrong elsewhere."""
        return {"found": None, "_locks": {}}
