"""Averaging over real llama.cpp servers: means of a model with itself, and of models that cut a text alike."""

from __future__ import annotations

import math

import pytest

from cosd_api import Average, Fusion, Segment
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair
from cosd_providers import UnsupportedError, connect
from cosd_providers.contract import Token
from cosd_providers.usage import Usage
from drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=9)]
MAY_TIE = 2  # answers of 50


@pytest.mark.parametrize("count", partly([2, 50]))
@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_the_mean_of_a_model_with_itself_is_its_own(pair: Pair, name: str, count: int) -> None:
    method = Average(weights=(1, 2), ahead=4)
    async with connect(pair[name]) as alone, Fusion(models=[pair[name], pair[name]], method=method) as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
        wanted: list[bytes] = []
        for prompt in PROMPTS[:count]:
            written = alone.generate(prompt, b"", max_tokens=30, usage=Usage())
            wanted.append(b"".join([token.data async for token in written if isinstance(token, Token)]))
    tied = [result for result in results if any(is_tied(segment) for segment in result.segments)]
    assert len(tied) <= MAY_TIE
    assert all(result.text.encode() == text for result, text in zip(results, wanted, strict=True) if result not in tied)
    assert all(result.trace.replay() == result.text for result in results)
    assert not [words for result in results for words in result.warnings if "to prove" in words]


def is_tied(segment: Segment) -> bool:
    """Test whether another token was as probable: one at a time and in a batch, a server's digits differ."""
    means = [entry.mean for entry in segment.candidates if entry.mean is not None]
    return len(means) > 1 and math.isclose(*sorted(means)[:2], rel_tol=1e-2)


@pytest.mark.parametrize("first", ["sums", "facts"])
async def test_all_the_weight_on_one_model_gives_its_own_beginning(pair: Pair, first: str) -> None:
    """Both models cut the beginning of an answer alike."""
    other = {"sums": "facts", "facts": "sums"}[first]
    method = Average(weights=(0, 1))
    async with (
        connect(pair[other]) as alone,
        Fusion(models=[pair[first], pair[other]], method=method, unit="token") as fusion,
    ):
        for prompt in PROMPTS[:4]:
            result = await fusion.generate(prompt, max_tokens=3)
            written = alone.generate(prompt, b"", max_tokens=3, usage=Usage())
            wanted = b"".join([token.data async for token in written if isinstance(token, Token)])
            assert result.text.encode() == wanted


async def test_two_tokenizers_are_refused(pair: Pair) -> None:
    async with Fusion(models=[pair.sums, pair.facts], method="average") as fusion:
        with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
            await fusion.generate(PROMPTS[0])
