"""One fusion for each event loop: connections belong to the loop in which they were made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import fields
from typing import Any
from weakref import finalize

import anyio

from cosd_api.fusion import Fusion

__all__ = ["Held"]


class _Open:
    """A fusion that is opened once and closed once, by whoever comes first."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._holder: AsyncGenerator[None] | None = None
        self._pin: finalize[Any, Any] | None = None
        self._lock = anyio.Lock()
        self._closed = False

    async def open(self, owner: Held) -> None:
        """Opens it for as long as there is its owner, and its loop."""
        async with self._lock:
            if self._holder is not None:
                return
            await self.fusion.__aenter__()
            self._holder = self._held()
            await anext(self._holder)
            # What closes it must not be garbage together with what it closes, as that is collected in any order.
            self._pin = finalize(owner, _owner_has_gone, asyncio.get_running_loop(), self)
            self._pin.atexit = False

    async def close(self) -> None:
        """Closes it; returns when that is done, whoever does it."""
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
        """Before it ends, a loop closes the async generators that were begun in it, after all else is over."""
        try:
            yield
        finally:
            await self.close()


class _Closing(asyncio.Task[None]):
    """A task that a loop which ends waits for, as it does for all, but does not cancel."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - asyncio's own
        return False


def _owner_has_gone(loop: asyncio.AbstractEventLoop, one: _Open) -> None:
    """Closes what nobody has any more, in its loop; called in any thread."""

    def close() -> None:
        task = _Closing(one.close(), loop=loop)
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    with suppress(RuntimeError):  # the loop is closed, and so is all that was opened in it
        loop.call_soon_threadsafe(close)


_closing: set[_Closing] = set()


class Held:
    """The fusions of one model, all alike and over the same providers: what those learned, they learn once.

    Each is opened when its loop first needs it. It is closed when the loop is, by `asyncio.run` and whatever else calls
    `shutdown_asyncgens`, or when nobody holds it any more. Copies have none, and make their own.

    Attributes:
        pattern: what they are all like; never opened itself.
    """

    def __init__(self) -> None:
        self.pattern: Fusion | None = None
        self._open: dict[asyncio.AbstractEventLoop, _Open] = {}
        self._lock = threading.Lock()

    def like(self, make: Callable[[], Fusion]) -> Fusion:
        """The pattern: what `make` gives the first time."""
        with self._lock:
            if self.pattern is None:
                self.pattern = make()
            return self.pattern

    async def opened(self, make: Callable[[], Fusion]) -> Fusion:
        """The fusion of the running loop, open."""
        pattern, loop = self.like(make), asyncio.get_running_loop()
        with self._lock:
            for ended in [other for other in self._open if other.is_closed()]:
                del self._open[ended]
            one = self._open.get(loop)
            if one is None:
                one = self._open[loop] = _Open(_another(pattern))
        await one.open(self)
        return one.fusion

    def __deepcopy__(self, memo: object) -> Held:
        return Held()

    def __reduce__(self) -> tuple[type[Held], tuple[()]]:
        return Held, ()


def _another(fusion: Fusion) -> Fusion:
    """One with the same settings, over the same providers."""
    settings: dict[str, Any] = {one.name: getattr(fusion.settings, one.name) for one in fields(fusion.settings)}
    return Fusion(draft=fusion.endpoints.draft, assistant=fusion.endpoints.assistants, **settings)
