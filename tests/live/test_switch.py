"""ModelSwitch over real llama.cpp servers: the vote on what the servers draw by the same seeds, one after another."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider, connect
from cosd_providers.contract import Context, Token
from cosd_providers.usage import Usage
from naive import enumerated
from naive import switch as naive_switch
from naive.reference import Fused, Out, finished
from support.drawn import partly
from support.method_files import Switch

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=32)]
MAX_TOKENS, SAMPLES, LAST_NUMBER, SEED = 24, 3, r"\d+", 4
MAY_DIFFER = 5
"""Answers of 50: a server's digits change with what it does beside them, and so may a draw of some hundred tokens."""


async def drawn(model: Provider, at: int, number: int, prompt: str) -> Fused:
    """One sample, asked for by itself."""
    seed = enumerated.seed(SEED, prompt.encode(), "sample", at, number)
    stream = model.generate(Context(prompt, b""), max_tokens=MAX_TOKENS, temperature=1, seed=seed, usage=Usage())
    tokens = [Out(token.data, at, token.end) async for token in stream if isinstance(token, Token)]
    fused = finished(tokens, (), MAX_TOKENS)
    assert fused is not None
    return fused


@pytest.mark.parametrize("count", partly([2, 20]))
@pytest.mark.parametrize("names", partly([("sums", "facts"), ("facts", "sums")]), ids="-".join)
async def test_the_answers_are_the_votes(pair: Pair, names: tuple[str, str], count: int) -> None:
    method = Switch(samples=SAMPLES, answer=LAST_NUMBER)
    async with Fusion(models=[pair[name] for name in names], method=method) as fusion:
        results = [one async for one in fusion.map(PROMPTS[:count], max_tokens=MAX_TOKENS, seed=SEED, concurrency=4)]
    differing, asked = 0, 0
    async with connect(pair[names[0]]) as first, connect(pair[names[1]]) as second:
        for prompt, result in zip(PROMPTS, results, strict=False):
            samples: dict[tuple[int, int], Fused] = {}
            for at, model in enumerate((first, second)):
                told = "assistant" if at else "draft"
                heard = any(one.scores.get(told) is not None for one in result.segments[0].candidates)
                for number in range(SAMPLES) if heard or not at else ():
                    samples[at, number] = await drawn(model, at, number, prompt)
                asked += bool(at and heard)

            def draw(at: int, number: int, samples: Mapping[tuple[int, int], Fused] = samples) -> Fused:
                return samples[at, number]

            try:
                won, _, _ = naive_switch.switch(draw, 2, samples=SAMPLES, pattern=LAST_NUMBER)
            except KeyError:  # of another number of models
                differing += 1
            else:
                differing += won.fused.text != result.text.encode()
            assert result.trace.replay() == result.text
    assert differing <= MAY_DIFFER
    assert count == 2 or asked
