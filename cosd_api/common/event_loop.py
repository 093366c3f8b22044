"""Tuning of the event loop and garbage collector in a process that the library owns, such as a `cosd` command."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import TypeVar, TypeVarTuple

import anyio

from cosd_providers.http.clients import EventLoop, event_loop

__all__ = ["event_loop_name", "own_process", "run_async"]

_OBJECTS = 10_000

_log = logging.getLogger("cosd_api.common.event_loop")

T = TypeVar("T")
Args = TypeVarTuple("Args")


def event_loop_name() -> str:
    """The name of the event loop that commands use, with its version unless it is asyncio's own loop."""
    name = event_loop()
    return name if name == "asyncio" else f"{name} {metadata.version(name)}"


def run_async(function: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run an async function as `anyio.run` does, in a process that the library owns."""
    with own_process() as loop:
        return anyio.run(function, *args, backend_options={"use_uvloop": loop == "uvloop"})


@contextmanager
def own_process() -> Iterator[EventLoop]:
    """Tune a process that the library owns for the duration of the block, and yield the name of the event loop to use.

    Inside the block, the garbage collector starts after 10,000 new objects instead of 700 (2,000 in newer versions of
    Python), and skips objects that are older than the block. Fusions create hardly any reference cycles, but many
    objects that live for a while. By default, the collector would visit these objects again and again, and
    would pause all streams each time.
    """
    _log.debug("event loop: %s", event_loop_name())
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    try:
        yield event_loop()
    finally:
        gc.set_threshold(*thresholds)
        if not frozen:
            gc.unfreeze()
