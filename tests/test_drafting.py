"""The draft's requests, in virtual time: when one follows a request that was cancelled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from cosd_api import fuse
from cosd_providers.contract import DraftEnd, Token
from cosd_providers.testing import ScriptedProvider
from support import virtual_time
from toys.id_models import Written

BETWEEN = 0.05
"""Seconds for a token of the draft."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


class Clocked(ScriptedProvider):
    """A server that notes when each of its streams begins and ends."""

    times: list[float]

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        self.times.append(anyio.current_time())
        try:
            async with aclosing(super().generate(*args, **options)) as items:
                async for item in items:
                    yield item
        finally:
            self.times.append(anyio.current_time())


@pytest.mark.parametrize(("places", "pauses"), [(1, True), (64, False)])
async def test_a_draft_waits_for_the_place_of_a_cancelled_one(places: int, pauses: bool) -> None:
    """One token's time, if the server has a cache for each place; other servers are asked at once."""
    writer = Written((97,) * 40, {4: {97: 0.3}}, prob=0.95)
    draft = Clocked(writer, ids=True, places=places, token_delay=BETWEEN)
    draft.times = []
    assistant = ScriptedProvider(Written((97, 97, 97, 97, 98), prob=0.9), ids=True, request_delay=1.5 * BETWEEN)
    result = await fuse("Q", draft=draft, assistant=assistant, max_tokens=20)
    assert (result.replacements, result.requests[0].outcome) == (1, "cancelled")
    _, left, begun, *_ = draft.times
    assert (begun - left > BETWEEN / 2) == pauses
