"""Many coroutines at a time (together): its order is tested with `Fusion.map`, its work here."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from cosd_api.common.bounded_map import Order, bounded_map


async def one() -> None:
    await checkpoint()


def work(count: int) -> Generator[Coroutine[Any, Any, None]]:
    return (one() for _ in range(count))


async def calls(count: int, concurrency: int, order: Order) -> int:
    """Calls of functions, built-in ones too, for so many coroutines."""
    made = 0

    def call(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(call)
    try:
        given = [task async for task in bounded_map(work(count), concurrency, order)]
    finally:
        sys.setprofile(before)
    assert len(given) == count
    return made


@pytest.mark.parametrize("order", ["given", "completed"])
async def test_the_work_for_one_does_not_grow_with_their_number(order: Order) -> None:
    """At 256 at a time one takes no more calls than at 8."""
    few, many = [await calls(1024, concurrency, order) for concurrency in (8, 256)]
    assert many < 1.2 * few
