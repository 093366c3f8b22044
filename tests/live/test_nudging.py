"""Nudging on real llama.cpp servers: the answers are those of a naive script over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from cosd_api import Fusion, FusionResult
from cosd_api.apps.demo.servers import Pair
from naive import nudging as naive_nudging
from naive import over_http as naive
from support.asked import in_turn
from support.drawn import partly
from support.method_files import Nudging
from toys import contests

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

MAX_TOKENS = 30
METHOD = Nudging(nudge_tokens=4)  # an answer of 16 tokens would mostly be one nudge
PROMPTS = in_turn(20, seed=37)
CLOSE = 1e-3
"""Margin of a decision that a batch and a single token may take differently."""


@pytest.mark.parametrize("count", partly([3, 20]))
@pytest.mark.parametrize("names", [("sums", "facts"), ("facts", "sums"), ("sums", "sums")], ids="-".join)
async def test_the_answers_are_the_naive_ones(
    pair: Pair, naively: Mapping[str, naive.HttpModel], names: tuple[str, str], count: int
) -> None:
    async with Fusion(draft=pair[names[0]], assistant=pair[names[1]], method=METHOD) as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=MAX_TOKENS, concurrency=4)]
    models = [naively[name] for name in names]
    excused = [one for one, result in zip(PROMPTS, results, strict=False) if not same(result, one, models)]
    assert len(excused) <= max(1, count // 10)
    assert any(len(result.segments) > 2 for result in results)


def same(result: FusionResult, prompt: str, models: Sequence[naive.HttpModel]) -> bool:
    """Test whether an answer is the naive one. It must be, unless a call was close."""
    margins = list[float]()
    for model in models:
        model.closest = 1.0
    wanted = naive_nudging.nudging(
        prompt.encode(), models, max_tokens=MAX_TOKENS, nudge_tokens=METHOD.nudge_tokens, margins=margins
    )
    try:
        contests.check(result, wanted)
    except AssertionError:
        if min([*margins, *(model.closest for model in models)]) > CLOSE:
            raise
        return False
    return True
