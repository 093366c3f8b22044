"""The synchronous interface, in which one event loop in one background thread serves the whole process."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

P = ParamSpec("P")
T = TypeVar("T")

_lock = threading.Lock()
_open: tuple[int, BlockingPortal, int] | None = None
"""The process id, the portal, and the id of the portal's thread; None before the first call."""

_END: Final = object()


def sync_portal() -> BlockingPortal:
    """Return the portal of this process; the first call starts it.

    The portal stays open, so providers keep their connections between calls. Its work runs in a separate thread, so
    synchronous calls also work inside a running event loop, such as a notebook's.
    """
    global _open  # noqa: PLW0603 - one portal for the process
    with _lock:
        # A forked child process has a copy of the portal, but not its thread.
        if _open is None or _open[0] != os.getpid():
            opened: Future[BlockingPortal] = Future()
            # anyio's start_blocking_portal is unsuitable: in a forked child, freeing its copy waits for the missing
            # thread.
            thread = threading.Thread(target=anyio.run, args=(_serve, opened), name="cosd-api", daemon=True)
            thread.start()
            _open = os.getpid(), opened.result(), thread.ident or 0
            atexit.register(_close, opened.result(), thread, os.getpid())
        return _open[1]


async def _serve(opened: Future[BlockingPortal]) -> None:
    async with BlockingPortal() as one:
        opened.set_result(one)
        await one.sleep_until_stopped()


def _close(opened: BlockingPortal, thread: threading.Thread, process: int) -> None:
    if process == os.getpid():
        opened.call(opened.stop, True)
        thread.join()


def _in_its_thread() -> bool:
    return _open is not None and (_open[0], _open[2]) == (os.getpid(), threading.get_ident())


def synchronous(function: Callable[P, Coroutine[Any, Any, T]], name: str) -> Callable[P, T]:
    """Wrap an async function as a plain function called `name`. Interrupting the call cancels the work."""

    @functools.wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        if _in_its_thread():
            raise RuntimeError(f"{name} was called from code that it runs itself; use `await {function.__name__}(...)`")
        work: Callable[[], Coroutine[Any, Any, T]] = functools.partial(function, *args, **kwargs)
        future = sync_portal().start_task_soon(work)
        try:
            result: T = future.result()
            return result
        except BaseException:
            future.cancel()
            raise

    plain.__name__ = plain.__qualname__ = name
    plain.__doc__ = (
        f"The synchronous form of `{function.__name__}`, which also works inside a running event loop (a notebook's)."
    )
    return plain


def iterate_sync(work: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]], name: str) -> Generator[T]:
    """Iterate synchronously over the items that `work` emits.

    Leaving the loop early cancels the work and waits until it has cleaned up. Error messages refer to the calling
    function as `name`.
    """
    if _in_its_thread():
        raise RuntimeError(f"{name} was called from code that it runs itself; use its async form")
    items: SimpleQueue[Any] = SimpleQueue()  # contains items of type T, then _END

    async def run() -> None:
        try:
            await work(items.put)
        finally:
            items.put(_END)

    future = sync_portal().start_task_soon(run)
    item: Any = None
    try:
        while (item := items.get()) is not _END:
            yield item
        future.result()  # raises the error of `work`
    finally:
        future.cancel()
        while item is not _END and not _in_its_thread():  # garbage collection in the portal's thread must not wait
            item = items.get()
