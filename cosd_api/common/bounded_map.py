"""Limited concurrency for many coroutines, used by `Fusion.map` and by batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, Literal, TypeVar

from cosd_api.common.tasks import settled

__all__ = ["Order", "bounded_map"]

Order = Literal["given", "completed"]
"""The order in which answers are yielded: the order of their prompts, or the order in which they are completed."""

_HELD = 4
"""Maximum number of coroutines that are started but not yet yielded, as a multiple of `concurrency`."""

T = TypeVar("T")


async def bounded_map(
    work: Generator[Coroutine[Any, Any, T]], concurrency: int, order: Order
) -> AsyncGenerator[asyncio.Task[T]]:
    """Run up to `concurrency` coroutines at a time, and yield each one as a completed task.

    `work` is read lazily. Closing the generator cancels the coroutines in progress.
    """
    # These are plain tasks instead of a task group, because a generator may be closed by a task that did not run it.
    started: dict[asyncio.Task[T], None] = {}  # tasks that have not been yielded yet
    complete: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
    running = 0

    async def fail(error: Exception) -> T:
        raise error

    def start() -> None:
        """Start coroutines while there is room."""
        nonlocal running
        while running < concurrency and len(started) < _HELD * concurrency:
            try:
                coroutine = next(work)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - an error of `work`, which is raised when its turn comes
                coroutine = fail(error)
            task = asyncio.create_task(coroutine)  # noqa: TID251
            task.add_done_callback(end)
            started[task] = None
            running += 1

    def end(task: asyncio.Task[T]) -> None:
        nonlocal running
        running -= 1
        if order == "completed":
            complete.put_nowait(task)
        start()

    try:
        start()
        while started:
            done = await complete.get() if order == "completed" else next(iter(started))
            await asyncio.wait([done])
            del started[done]
            start()
            yield done
    finally:
        work.close()
        for one in started:
            one.cancel()
        await settled([*started])
