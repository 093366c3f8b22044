"""An event loop whose time passes only while everything waits: nothing is waited out, and no machine is too slow.

For tests over models in this process: with it a timeout, a delay and the order of answers are exact.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple

import anyio

T = TypeVar("T")
Args = TypeVarTuple("Args")


class _Skipping(selectors.DefaultSelector):
    """Where there is nothing to do until some time, it is that time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # another thread may still call
            return super().select()
        found = super().select(0)
        if not found:
            self.now += max(timeout, 0.0)
        return found


class VirtualTime(asyncio.SelectorEventLoop):
    """The event loop."""

    def __init__(self) -> None:
        self._clock = _Skipping()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._clock.now


BACKEND: tuple[str, dict[str, Any]] = ("asyncio", {"loop_factory": VirtualTime})
"""For a fixture `anyio_backend`."""


def run(function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """`anyio.run` in virtual time."""
    return anyio.run(function, *args, backend_options=BACKEND[1])
