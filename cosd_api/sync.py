"""The thin sync face: one event loop in one background thread, for the whole process."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_open: tuple[int, BlockingPortal, int] | None = None
"""Process, portal, and the portal's thread."""


def portal() -> BlockingPortal:
    """The portal, started at the first call.

    It is one for the whole process, and it stays: providers keep their connections between calls, and a call works
    inside a running event loop (a notebook's) too, because the work is done in another thread.
    """
    global _open  # noqa: PLW0603 - one portal for the process
    with _lock:
        # A forked child has a copy of the object but not the thread behind it.
        if _open is None or _open[0] != os.getpid():
            stack = ExitStack()
            opened = stack.enter_context(start_blocking_portal("asyncio", name="cosd-api"))
            _open = os.getpid(), opened, opened.call(threading.get_ident)
            atexit.register(_close, stack, os.getpid())
        return _open[1]


def _close(stack: ExitStack, process: int) -> None:
    if process == os.getpid():
        stack.close()


def synchronous(function: Callable[P, Coroutine[Any, Any, T]], name: str) -> Callable[P, T]:
    """An async function as a plain one called `name`; an interrupt while it waits cancels the work."""

    @functools.wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        if _open is not None and _open[2] == threading.get_ident():
            raise RuntimeError(f"{name} was called from code that it runs itself; use `await {function.__name__}(...)`")
        work: Callable[[], Coroutine[Any, Any, T]] = functools.partial(function, *args, **kwargs)
        future = portal().start_task_soon(work)
        try:
            result: T = future.result()
            return result
        except BaseException:
            future.cancel()
            raise

    plain.__name__ = plain.__qualname__ = name
    plain.__doc__ = (
        f"`{function.__name__}` for code that is not async; works inside a running event loop (a notebook's) too."
    )
    return plain
