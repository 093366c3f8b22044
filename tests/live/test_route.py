"""Routing and cascading on real llama.cpp servers: the answers are those of a naive script over plain HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, Safe
from cosd_api.apps.demo.servers import Pair
from cosd_api.extend import Method
from naive import over_http as naive
from naive import route as naive_route
from support.asked import in_turn
from support.drawn import partly
from support.method_files import Cascade, Route
from toys import contests

pytestmark = [pytest.mark.live, pytest.mark.timeout(550)]

MAX_TOKENS = 40
PROMPTS = in_turn(20, seed=31)
METHODS: list[tuple[Method, Any]] = [
    (Route(), partial(naive_route.route, beginning=False)),
    (Cascade(tau=0.2), partial(naive_route.cascade, tau=0.2)),
]
SETS = [("sums", "facts"), ("facts", "sums")]  # the same model twice would tie, but for noise


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers, asked directly for all probabilities of one place at a time."""
    with httpx.Client(timeout=60) as client:
        found = {name: naive.HttpModel(url, client) for name, url in pair.items()}
        for model in found.values():
            model.depth = model.size
            model.next(model.vocabulary.encode(b"Q"))  # after which the bytes of all tokens are known
        yield found


async def compared(
    pair: Pair,
    models: dict[str, naive.HttpModel],
    names: Sequence[str],
    method: tuple[Method, Any],
    prompts: Sequence[str],
) -> None:
    made, plain = method
    async with Fusion(draft=pair[names[0]], assistant=[pair[name] for name in names[1:]], method=made) as fusion:
        results = [result async for result in fusion.map(prompts, max_tokens=MAX_TOKENS, concurrency=2)]
    for prompt, result in zip(prompts, results, strict=True):
        asked: Any = [models[name] for name in names]
        wanted = plain(prompt.encode(), asked, max_tokens=MAX_TOKENS)
        contests.check(result, wanted, rounding=2e-2)  # of texts whose probability is one in a million


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[0].name)
@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_three_prompts(
    pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...], method: tuple[Method, Any]
) -> None:
    await compared(pair, models, names, method, PROMPTS[:3])


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[0].name)
@pytest.mark.parametrize("names", SETS, ids="-".join)
async def test_twenty_prompts(
    pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...], method: tuple[Method, Any]
) -> None:
    await compared(pair, models, names, method, PROMPTS)


@pytest.mark.parametrize("count", partly([3, 20]))
@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_weights_of_other_methods(
    pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...], count: int
) -> None:
    made = Safe(weights="route", tau=0.5)
    async with Fusion(models=[pair[name] for name in names], method=made) as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=2, concurrency=4)]
    for prompt, result in zip(PROMPTS, results, strict=False):
        asked: Any = [models[name] for name in names]
        means = [naive_route.prompt_mean(model, prompt.encode(), beginning=False) for model in asked]
        powers = [math.exp(-mean / 0.5) for mean in means]
        assert result.weights is not None
        assert [*result.weights.values()] == pytest.approx([power / sum(powers) for power in powers], rel=2e-2)
