"""Deferral over real llama.cpp servers: the text is what a naive script gets that asks them one prefix at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import httpx
import pytest

import naive
import naive_defer
from cosd_api import Defer, Fusion
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair
from cosd_providers import UnsupportedError
from drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=14)]
GATE = naive_defer.gate(0.37, listed=5, bias=1.2, top=-3.3, entropy=0.9, number=0.4, word=0.6, end=-0.5)
CLOSE = 1e-3  # probabilities: a batch and a single token differ in the last digits
MAY_DIFFER = 3  # answers of 50, and each only where it was close


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers as the naive script sees them; what it asked once it remembers."""
    with httpx.Client(timeout=60) as client:
        yield {name: naive.HttpModel(url, client) for name, url in pair.items()}


@pytest.mark.parametrize("count", partly([3, 50]))
@pytest.mark.parametrize("direction", partly([(one, two) for one in ("sums", "facts") for two in ("facts", "sums")]))
async def test_the_text_is_the_naive_one(
    pair: Pair, models: dict[str, naive.HttpModel], direction: tuple[str, str], count: int
) -> None:
    """Also of two tokenizers that are said to be one: what differs from the draft's token is other bytes."""
    draft, assistant = direction
    opened, excused = 0, []
    async with Fusion(draft=pair[draft], assistant=pair[assistant], method=Defer(gate=GATE), unit="token") as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
    for prompt, result in zip(PROMPTS, results, strict=False):
        wanted, seen = naive_defer.naive(prompt.encode(), models[draft], models[assistant], GATE, max_tokens=30)
        opened += sum(token.asked for token in result.tokens)
        assert result.trace.replay() == result.text
        pairs = zip_longest(
            [(token.data, token.asked) for token in result.tokens],
            [(token.data, place.opens) for token, place in zip(wanted.tokens, seen, strict=True)],
        )
        different = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        if different is not None:
            assert min(place.margin for place in seen[: different + 1]) < CLOSE, (prompt, result.text, wanted.text)
            excused.append(prompt)
    assert opened
    assert len(excused) <= MAY_DIFFER


async def test_two_tokenizers_are_refused(pair: Pair) -> None:
    async with Fusion(draft=pair.sums, assistant=pair.facts, method=Defer(gate=GATE)) as fusion:
        with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
            await fusion.generate(PROMPTS[0])
