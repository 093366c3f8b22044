"""Questions that are left out, and the ways to ask the others, on real servers without a delay."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks import strategies
from benchmarks.report import Options
from cosd_api.demo.servers import Pair
from cosd_providers import connect


@pytest.mark.extended
@pytest.mark.live
async def test_leaving_out_what_cannot_matter_asks_less_and_changes_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "ROUND_TRIP", 0.0)
    table = await strategies.skipping(pair, Options(quick=True))
    for contestable, everything in (table.rows[:2], table.rows[2:]):
        assert contestable[-1] == everything[-1] == "5 of 5"
        assert float(str(contestable[1])) < float(str(everything[1]))


@pytest.mark.live
async def test_each_way_is_taken_that_was_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "ROUND_TRIP", 0.0)
    monkeypatch.setattr(strategies, "PLACES", (1, 4))
    monkeypatch.setattr(strategies, "CONTEXTS", ("short",))
    table = await strategies.asking("llama.cpp", pair, 2, Options(quick=True))
    assert [row[0] for row in table.rows] == ["short, 1", "short, 4"]
    for (cell, ways), places in zip(table.figures.items(), (1, 4), strict=True):
        assert {*ways} == {*strategies.WAYS["llama.cpp"]}
        for way in strategies.WAYS["llama.cpp"]:
            assert ways[way]["ways"] == {way: 2 * places}, cell
            assert len(ways[way]["seconds"]) == len(ways[way]["read"]) == 2


@pytest.mark.live
async def test_no_text_comes_twice(pair: Pair) -> None:
    async with connect(pair.sums) as sums:
        found = strategies.texts([sums], long=False)
        some = [await anext(found) for _ in range(120)]
        await found.aclose()
    assert len({prompt for prompt, _, _ in some}) == len(some)
    for _, text, ends in some:
        assert len(ends) >= max(strategies.PLACES)
        assert ends[-1] == len(text)
        assert all(a < b for a, b in pairwise(ends))
