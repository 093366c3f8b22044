"""The benchmark of the gateway: what it counts, and that its servers run."""

from __future__ import annotations

import pytest

from benchmarks.gateway import Observed, _centiles, _costs, _relay


def test_costs_of_tokens_and_of_answers_are_told_apart() -> None:
    found = {8: [Observed(4 * (500e-6 + 8 * 100e-6)), Observed(1.0)], 108: [Observed(4 * (500e-6 + 108 * 100e-6))]}
    assert _costs(found, 4) == pytest.approx((100, 500))


def test_centiles() -> None:
    assert _centiles([float(one) for one in range(1000)]) == (499.5, 990)
    assert _centiles([7.0]) == (7, 7)


@pytest.mark.extended
async def test_every_token_of_every_stream_is_seen() -> None:
    found = await _relay(2, 4)
    assert (len(found.first), len(found.each)) == (2, 6)
    assert min(*found.first, *found.each, found.cpu) > 0
