"""Concurrency helpers: send several requests to one server at a time, and compute a value once for all callers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import anyio
from anyio.lowlevel import current_token

_AT_ONCE = 8  # the default limit on requests in progress

_T = TypeVar("_T")


async def concurrently(jobs: Sequence[Callable[[], Awaitable[_T]]], at_once: int = _AT_ONCE) -> list[_T]:
    """Run all jobs, up to `at_once` at a time, and return their results in order. The first error cancels the rest.

    Raises:
        Exception: the first error that a job raises, not wrapped in an exception group. The library's own jobs raise
            `ProviderError`.
    """
    if len(jobs) < 2:
        return [await job() for job in jobs]  # for a single job, a task group costs more than it saves
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
    """A value that is computed once, asynchronously. If that fails, the next caller tries again. Copies start empty."""

    def __init__(self) -> None:
        self.found: _T | None = None  # the value; None until it is computed
        self._locks: dict[object, anyio.Lock] = {}  # one lock for each event loop, because loops cannot share a lock

    async def get(self, find: Callable[[], Awaitable[_T]]) -> _T:
        """Return the value, calling `find` if it is not known yet. Meanwhile, other tasks of this event loop wait."""
        if self.found is None:
            async with self._locks.setdefault(current_token(), anyio.Lock()):
                if self.found is None:
                    found = await find()
                    self.found = found if self.found is None else self.found  # another event loop may have been faster
            self._locks.clear()
        return self.found

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state: locks cannot be copied, and the value may be wrong in another process."""
        return {"found": None, "_locks": {}}
