"""Several requests under way to one server, where each question has its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from cosd_providers.errors import ProviderError

__all__ = ["concurrently"]

_AT_ONCE = 8  # requests under way

_T = TypeVar("_T")


async def concurrently(jobs: Sequence[Callable[[], Awaitable[_T]]]) -> list[_T]:
    """The results of all jobs, in order; a few run at once. The first `ProviderError` ends them all.

    Raises:
        ProviderError: that error, as it is and not in a group.
    """
    results: dict[int, _T] = {}
    failed: list[ProviderError] = []
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def run(at: int) -> None:
        async with limiter:
            try:
                results[at] = await jobs[at]()
            except ProviderError as error:
                failed.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for at in range(len(jobs)):
            group.start_soon(run, at)
    if failed:
        raise failed[0]
    return [results[at] for at in range(len(jobs))]
