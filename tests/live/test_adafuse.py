"""AdaFuse over real llama.cpp servers: the answers are those of a naive script over plain HTTP, in every direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from naive import adafuse as naive_adafuse
from naive import over_http as naive
from support.drawn import partly
from support.method_files import AT

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=23)]
MAX_TOKENS = 16
SETS = [("sums", "facts"), ("facts", "sums")]


@pytest.fixture(scope="module")
def plain_models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers, asked directly for the distribution of one place at a time; what they said is remembered."""
    with httpx.Client(timeout=60) as client:
        found = {name: naive.HttpModel(url, client) for name, url in pair.items()}
        for model in found.values():
            model.depth = model.size
        yield found


async def compared(pair: Pair, models: dict[str, naive.HttpModel], names: Sequence[str], prompts: Sequence[str]) -> int:
    """Compare the answers; returns how many differ where a decision was close."""
    excused = 0
    async with Fusion(models=[pair[name] for name in names], method=AT["adafuse"]) as fusion:
        results = [result async for result in fusion.map(prompts, max_tokens=MAX_TOKENS, concurrency=4)]
    for prompt, result in zip(prompts, results, strict=True):
        asked: Any = [models[name] for name in names]
        doubts = naive_adafuse.Doubts([], [], [])
        wanted = naive_adafuse.adafuse(prompt.encode(), asked, max_tokens=MAX_TOKENS, doubts=doubts)
        assert result.trace.replay() == result.text
        same = [(one.data, one.end) for one in result.tokens] == [(one.data, one.end) for one in wanted.tokens]
        assert same or doubts.close, (prompt, result.text, wanted.text)
        excused += not same
    return excused


@pytest.mark.parametrize("count", partly([2, 20]))
@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_the_answers_are_the_naive_ones(
    pair: Pair, plain_models: dict[str, naive.HttpModel], names: tuple[str, ...], count: int
) -> None:
    assert await compared(pair, plain_models, names, PROMPTS[:count]) <= count // 10


@pytest.mark.extended
async def test_three_models(pair: Pair, plain_models: dict[str, naive.HttpModel]) -> None:
    assert await compared(pair, plain_models, ("sums", "facts", "sums"), PROMPTS[:6]) <= 1
