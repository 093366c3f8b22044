"""A separate fusion for each event loop, because connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any
from weakref import finalize

import anyio

from cosd_api import Fusion

__all__ = ["LoopFusions"]


class _Open:
    """A fusion that is opened and closed only once, even if several callers open or close it at the same time."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._holder: AsyncGenerator[None] | None = None
        self._pin: finalize[Any, Any] | None = None
        self._lock = anyio.Lock()
        self._closed = False

    async def open(self, owner: LoopFusions) -> None:
        """Open the fusion. It stays open until its owner is garbage-collected or its loop ends."""
        async with self._lock:
            if self._holder is not None:
                return
            await self.fusion.__aenter__()
            self._holder = self._held()
            await anext(self._holder)
            # The finalizer keeps `self` alive until the owner is collected, so that the fusion is not collected first.
            self._pin = finalize(owner, _close_in, asyncio.get_running_loop(), self)
            self._pin.atexit = False

    async def close(self) -> None:
        """Close the fusion, or wait until another caller has closed it."""
        if self._closed:
            return
        async with self._lock:
            if not self._closed:
                await self.fusion.__aexit__(None, None, None)
                self._closed = True
        if self._pin is not None:
            self._pin.detach()
        if self._holder is not None and not getattr(self._holder, "ag_running", False):
            await self._holder.aclose()

    async def _held(self) -> AsyncGenerator[None]:
        """Close the fusion when this generator is closed, which an ending loop does with all its async generators."""
        try:
            yield
        finally:
            await self.close()


class _Closing(asyncio.Task[None]):
    """A task that cannot be cancelled, so that an ending loop waits for it."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - asyncio's own
        return False


def _close_in(loop: asyncio.AbstractEventLoop, one: _Open) -> None:
    """Close a fusion whose owner was garbage-collected, in the fusion's loop. May be called from any thread."""

    def close() -> None:
        task = _Closing(one.close(), loop=loop)
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    with suppress(RuntimeError):  # raised if the loop is closed, and with it everything that was opened in it
        loop.call_soon_threadsafe(close)


_closing: set[_Closing] = set()


class LoopFusions:
    """The fusions behind one model of another library: one per event loop, all with the same settings and providers.

    Because the providers are shared, each server is discovered only once. A fusion is opened for the first answer in
    its loop. It is closed when the model is garbage-collected, or when the loop is ended by `asyncio.run` or another
    caller of `shutdown_asyncgens`. A copy of this object contains no fusions.

    Attributes:
        pattern: the fusion from which the fusions of all loops are copied; it is never opened itself.
    """

    def __init__(self) -> None:
        self.pattern: Fusion | None = None
        self._open: dict[asyncio.AbstractEventLoop, _Open] = {}
        self._lock = threading.Lock()

    def like(self, make: Callable[[], Fusion]) -> Fusion:
        """Return the pattern; the first call creates it with `make`."""
        with self._lock:
            if self.pattern is None:
                self.pattern = make()
            return self.pattern

    async def opened(self, make: Callable[[], Fusion]) -> Fusion:
        """Return the running loop's fusion, which is opened if necessary."""
        pattern, loop = self.like(make), asyncio.get_running_loop()
        with self._lock:
            for ended in [other for other in self._open if other.is_closed()]:
                del self._open[ended]
            one = self._open.get(loop)
            if one is None:
                one = self._open[loop] = _Open(_copy(pattern))
        await one.open(self)
        return one.fusion

    def __deepcopy__(self, memo: object) -> LoopFusions:
        return LoopFusions()

    def __reduce__(self) -> tuple[type[LoopFusions], tuple[()]]:
        return LoopFusions, ()


def _copy(fusion: Fusion) -> Fusion:
    """Create a fusion with the same settings and the same providers."""
    settings: dict[str, Any] = {one.name: getattr(fusion.settings, one.name) for one in fields(fusion.settings)}
    if "verifier" not in fusion.settings.method.accepts:  # the method has its own verifier
        del settings["verifier"]
    return Fusion(draft=fusion.endpoints.draft, assistant=fusion.endpoints.assistants, **settings)
