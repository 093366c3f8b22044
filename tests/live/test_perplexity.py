"""Rerank and Cool-Fusion on real llama.cpp servers: the answers are those of a naive script over plain HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import httpx
import pytest

import contests
import naive
import naive_cool
from cosd_api import Fusion, Method
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair
from cosd_api.methods.base import method_named
from drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(550)]

MAX_TOKENS = 40
PROMPTS = [question.prompt for question in sample("mixed", 50, seed=31)]
METHODS: dict[str, Callable[..., naive_cool.Answered]] = {
    "cool": naive_cool.cool,
    "rerank": naive_cool.rerank,
    "cool+rerank": naive_cool.cool_and_rerank,
    "cool-align": partial(naive_cool.cool, align=True),
}
SETS = [("sums", "facts"), ("facts", "sums"), ("sums", "facts", "sums")]


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers, asked directly for all probabilities of one place at a time."""
    with httpx.Client(timeout=60) as client:
        found = {name: naive.HttpModel(url, client) for name, url in pair.items()}
        for model in found.values():
            model.depth = model.size
        yield found


async def compared(
    pair: Pair, models: dict[str, naive.HttpModel], names: Sequence[str], method: str, prompts: Sequence[str]
) -> None:
    made: Method = method_named(method)
    async with Fusion(models=[pair[name] for name in names], method=made) as fusion:
        results = [result async for result in fusion.map(prompts, max_tokens=MAX_TOKENS, concurrency=2)]
    for prompt, result in zip(prompts, results, strict=True):
        asked: Any = [models[name] for name in names]
        wanted = METHODS[method](prompt.encode(), asked, max_tokens=MAX_TOKENS)
        contests.check(result, wanted, rounding=2e-2)  # of texts whose probability is one in a million


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_two_prompts(pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...], method: str) -> None:
    await compared(pair, models, names, method, PROMPTS[:2])


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("names", SETS, ids="-".join)
async def test_fifty_prompts(
    pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...], method: str
) -> None:
    await compared(pair, models, names, method, PROMPTS)
