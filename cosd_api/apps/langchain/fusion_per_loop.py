"""A separate fusion for each event loop, because connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any
from weakref import finalize

import anyio

from cosd_api import Fusion

__all__ = ["LoopFusions"]


class _Opened:
    """A fusion that is opened only once, even if several callers open it at the same time."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.holder: AsyncGenerator[None] | None = None
        self._lock = anyio.Lock()

    async def open(self) -> None:
        """Open the fusion. It stays open until `holder` is closed."""
        async with self._lock:
            if self.holder is None:
                holder = _held(self.fusion)
                await anext(holder)
                self.holder = holder


async def _held(fusion: Fusion) -> AsyncGenerator[None]:
    """Hold a fusion open until this generator is closed, which an ending loop does with all its async generators."""
    async with fusion:
        yield


class _Closing(asyncio.Task[None]):
    """A task that cannot be cancelled, so that an ending loop waits for it."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - asyncio's own
        return False


_closing: set[_Closing] = set()


def _close_all(opened: Mapping[asyncio.AbstractEventLoop, _Opened]) -> None:
    """Close the fusions of a model that was garbage-collected, each in its loop. May be called from any thread."""

    def close(loop: asyncio.AbstractEventLoop, holder: AsyncGenerator[None]) -> None:
        task = _Closing(holder.aclose(), loop=loop)
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    for loop, one in opened.items():
        if one.holder is not None:
            with suppress(RuntimeError):  # raised if the loop is closed, and with it everything that was opened in it
                loop.call_soon_threadsafe(close, loop, one.holder)


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
        self._open: dict[asyncio.AbstractEventLoop, _Opened] = {}
        self._lock = threading.Lock()
        finalize(self, _close_all, self._open).atexit = False

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
            one = self._open.setdefault(loop, _Opened(_copy(pattern)))
        await one.open()
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
