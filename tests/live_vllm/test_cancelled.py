"""Streams that a client cancels, as a real vLLM counts what it has generated."""

from __future__ import annotations

import pytest

from cosd_api.apps.demo.servers import Pair
from support.cancelled import check_cancelling


@pytest.mark.parametrize("http", ["", "httpx"])
async def test_few_tokens_are_generated_after_a_cancellation(
    vllm_pair: Pair, http: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own count; on a busy machine it may hear late of a stream that was left, but not each time."""
    monkeypatch.setenv("COSD_HTTP", http)
    await check_cancelling(vllm_pair.sums)
