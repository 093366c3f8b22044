"""Several requests under way to one server."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from cosd_providers import ResponseError
from cosd_providers.concurrency import concurrently


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
    with pytest.raises(ResponseError, match="thirty"):
        await concurrently([lambda at=at: job(at) for at in range(40)])  # type: ignore[misc]
