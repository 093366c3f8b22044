"""Tasks at the same time: several requests to one server, and one value for all who ask for it."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from cosd_providers import ResponseError
from cosd_providers.concurrency import Lazy, concurrently


async def test_at_most_eight_at_once_and_one_error_ends_all() -> None:
    most = running = 0

    async def job(at: int) -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        if at == 30:
            raise ResponseError("thirty")
        return at

    assert await concurrently([lambda at=at: job(at) for at in range(20)]) == list(range(20))  # type: ignore[misc]
    assert most == 8
    most = 0
    assert await concurrently([lambda at=at: job(at) for at in range(20)], at_once=3) == list(range(20))  # type: ignore[misc]
    assert most == 3
    with pytest.raises(ResponseError, match="thirty"):
        await concurrently([lambda at=at: job(at) for at in range(40)])  # type: ignore[misc]


async def test_many_who_ask_at_once() -> None:
    once, asked = Lazy[int](), list[int]()

    async def find() -> int:
        asked.append(1)
        await anyio.sleep(0.01)
        return 7

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(once.get, find)
    assert await once.get(find) == once.found == 7
    assert len(asked) == 1


async def test_a_failure_is_not_kept_and_whoever_leaves_holds_up_nobody() -> None:
    once = Lazy[int]()
    answers: list[OSError | int] = [OSError("not now"), 7]

    async def find() -> int:
        await anyio.lowlevel.checkpoint()
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with pytest.raises(OSError, match="not now"):
        await once.get(find)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await once.get(find)
    assert await once.get(find) == 7


async def test_a_copy_finds_out_anew() -> None:
    once = Lazy[int]()

    async def find() -> int:
        return 7

    await once.get(find)
    assert pickle.loads(pickle.dumps(once)).found is None


def test_who_asks_in_several_event_loops_waits_for_no_other_loop() -> None:
    once, begun, may_end = Lazy[int](), threading.Event(), threading.Event()

    async def slowly() -> int:
        begun.set()
        await anyio.to_thread.run_sync(may_end.wait)
        return 7

    async def at_once() -> int:
        async def quickly() -> int:
            return 8

        with anyio.fail_after(5):
            return await once.get(quickly)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(anyio.run, once.get, slowly)
        begun.wait()
        try:
            assert anyio.run(at_once) == 8
        finally:
            may_end.set()
        assert other.result() == once.found == 8  # what was found first stays
