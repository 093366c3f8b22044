"""Sampled speculative decoding over real llama.cpp servers, of a model that is helped by itself or by another one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import httpx
import pytest

from cosd_api import Fusion, Speculative
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_providers.concurrency import concurrently
from naive import enumerated
from naive import over_http as naive
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=11)]
SAMPLED = Speculative(temperature=1, listed=200)
"""With lists of all that is drawn now and then: a first letter may be any."""
WHOLE = [Speculative(temperature=1, sampled_draft=drawn, listed=500) for drawn in (True, False)]
"""With lists of nearly all tokens that the models have."""
MAY_DIFFER = 1  # answers of 5: a server's digits change with what it does beside them
NEAR = 0.02


@pytest.mark.parametrize("count", partly([2, 10]))
@pytest.mark.parametrize("direction", partly([("sums", "sums"), ("sums", "facts"), ("facts", "sums")]))
async def test_each_token_is_kept_as_the_definition_says(pair: Pair, direction: tuple[str, str], count: int) -> None:
    """The bundled models have two tokenizers; a token of one is text for the other."""
    servers = [pair[name] for name in direction]
    async with Fusion(draft=servers[0], assistant=servers[1], method=SAMPLED, unit="token") as fusion:
        results = [one async for one in fusion.map(PROMPTS[:count], max_tokens=10, seed=4)]
        again = [one async for one in fusion.map(PROMPTS[: count // 2], max_tokens=10, seed=4)]
    assert sum(one.text != two.text for one, two in zip(results, again, strict=False)) <= MAY_DIFFER
    excused = 0
    with httpx.Client(timeout=60) as client:
        assistant = naive.HttpModel(servers[1], client, depth=SAMPLED.listed)
        for prompt, result in zip(PROMPTS, results, strict=False):
            text = prompt.encode()
            assert result.trace.replay() == result.text
            for token, segment in zip(result.tokens, result.segments, strict=True):
                drafted = segment.candidates[0]
                p = drafted.scores["draft"] if drafted.sources == ("draft",) else None
                if p and drafted.text.isascii() and not (token.reason or "").startswith("drawn by"):
                    q = naive.known(assistant, text).get(drafted.text.encode(), 0.0)
                    chance = enumerated.number(4, prompt.encode(), "keep", len(text) - len(prompt.encode()))
                    if (chance / p < q) != (token.source == "draft"):
                        assert abs(chance / p - q) < NEAR, (text, token, p, q, chance)
                        excused += 1
                text += token.data
    assert excused <= max(1, count // 10)
    if direction[0] == direction[1]:
        kept = sum(result.kept_tokens or 0 for result in results)
        assert kept / (kept + sum(result.replaced_tokens or 0 for result in results)) > 0.95


@pytest.mark.extended
@pytest.mark.parametrize("form", WHOLE)
async def test_first_tokens_are_distributed_as_the_assistants_own(pair: Pair, form: Speculative) -> None:
    prompt = "Q: In Peru a book costs"
    counts: Counter[tuple[int, ...]] = Counter()
    async with Fusion(draft=pair.facts, assistant=pair.sums, method=form, unit="token") as fusion:
        work = [partial(fusion.generate, prompt, max_tokens=1, seed=seed) for seed in range(250)]
        for result in await concurrently(work):
            counts[tuple(result.tokens[0].data)] += 1
    with httpx.Client(timeout=60) as client:
        wanted = naive.known(naive.HttpModel(pair.sums, client, depth=2000), prompt.encode())
    assert enumerated.follows(counts, {tuple(data): prob for data, prob in wanted.items()}, known=False)
