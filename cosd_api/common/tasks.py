"""Background tasks: a group that ends with its answer, and a wait for cancelled tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from anyio.abc import TaskGroup


class AnswerTasks:
    """The tasks of one answer. Tasks that are still running when the answer is over are cancelled.

    Each task has a scope that catches its cancellation, because a task that ends as cancelled leaves a reference cycle
    in anyio, which keeps all of the task's data alive.
    """

    def __init__(self) -> None:
        self._group: TaskGroup
        self._scopes = set[anyio.CancelScope]()
        self._closed = False  # whether new tasks are refused

    async def run(self, main: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run the answer's main coroutine. Its exception is raised directly, not inside an exception group."""
        failed: Exception | None = None
        async with anyio.create_task_group() as self._group:
            try:
                await main(*args)
            except Exception as error:  # noqa: BLE001 - raised below
                failed = error
            self._closed = True
            for scope in [*self._scopes]:
                scope.cancel()
        if failed is not None:
            raise failed

    def start(self, run: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a background task."""
        self._group.start_soon(self._run_within, run, args)

    async def _run_within(self, run: Callable[..., Awaitable[object]], args: Sequence[object]) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self._closed:
                    await run(*args)
            finally:
                self._scopes.discard(scope)


async def settled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until cancelled tasks have cleaned up, even while the caller itself is being cancelled."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):  # protects against anyio's cancellation; asyncio's is postponed below
        while waiting := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved; the code that awaited the task has seen it
    if cancelled is not None:
        raise cancelled
