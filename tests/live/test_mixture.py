"""Draws from the mean over real llama.cpp servers: what the servers draw by the same seeds, and its distribution."""

from __future__ import annotations

from collections import Counter
from functools import partial

import httpx
import pytest

from cosd_api import Average, Fusion, FusionResult
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_providers import connect
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, Token
from cosd_providers.usage import Usage
from naive import enumerated
from naive import over_http as naive
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=10)]
MAY_DIFFER = 3  # answers of 50: a server's digits change with what it does beside them


@pytest.mark.parametrize("count", partly([2, 20]))
@pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]))
async def test_each_run_is_what_its_model_draws(pair: Pair, direction: tuple[str, str], count: int) -> None:
    """The bundled models have two tokenizers; a token of one is text for the other."""
    servers = [pair[name] for name in direction]
    async with Fusion(models=servers, method=Average(weights=(2, 1), temperature=1), unit="token") as fusion:
        results = [one async for one in fusion.map(PROMPTS[:count], max_tokens=8, seed=3)]
    differing = 0
    async with connect(servers[0]) as first, connect(servers[1]) as second:
        models = {"draft": first, "assistant": second}
        for prompt, result in zip(PROMPTS, results, strict=False):
            text, place, same = b"", 0, True
            for segment in result.segments:
                tokens = [token for token in result.tokens if token.unit == result.segments.index(segment)]
                seed = enumerated.seed(3, prompt.encode(), "draw", place)
                model = models[segment.candidates[0].sources[0]]
                drawn = model.generate(
                    Context(prompt, text), max_tokens=len(tokens), temperature=1, seed=seed, usage=Usage()
                )
                again = [token.data async for token in drawn if isinstance(token, Token)]
                same = same and again == [token.data for token in tokens]
                text, place = text + b"".join(token.data for token in tokens), place + len(tokens)
            differing += not same
            check_models(result, prompt)
    assert differing <= MAY_DIFFER


def check_models(result: FusionResult, prompt: str) -> None:
    """Compare the model of each place."""
    for place, token in enumerate(result.tokens):
        point = enumerated.number(3, prompt.encode(), "model", place)
        assert (token.source == "draft") == (point < 2 / 3)
    assert result.trace.replay() == result.text


@pytest.mark.extended
async def test_first_tokens_are_distributed_as_those_of_the_mean(pair: Pair) -> None:
    prompt = "Q: In Peru a book costs"
    counts: Counter[tuple[int, ...]] = Counter()
    async with Fusion(models=[pair.facts, pair.sums], method=Average(temperature=1), unit="token") as fusion:
        work = [partial(fusion.generate, prompt, max_tokens=1, seed=seed) for seed in range(300)]
        for result in await concurrently(work):
            counts[tuple(result.tokens[0].data)] += 1
    with httpx.Client(timeout=60) as client:
        p, q = (
            naive.known(naive.HttpModel(url, client, depth=2000), prompt.encode()) for url in (pair.facts, pair.sums)
        )
    mean = {tuple(data): (p.get(data, 0) + q.get(data, 0)) / 2 for data in p.keys() | q.keys()}
    assert enumerated.follows(counts, mean, known=False)
