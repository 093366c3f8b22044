"""Averaging over real llama.cpp servers: means of a model with itself, and of models that cut a text alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from cosd_api import Average, Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, Three
from cosd_api.types import Segment
from cosd_providers import UnsupportedError, connect
from cosd_providers.contract import Context, Token
from cosd_providers.usage import Usage
from naive import over_http as naive
from naive.average import average, mean
from support.drawn import partly
from support.near_ties import tied
from support.one_tokenizer import MAY_TIE, PAIRS
from support.one_tokenizer import PROMPTS as FOR_TWO

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=9)]
MAY_HAVE_ACCENTS = 4  # answers of 12: such a letter is several tokens


@pytest.fixture(scope="module")
def models(three: Three) -> Iterator[Mapping[str, naive.HttpModel]]:
    """The two models with one tokenizer, asked for the probabilities of all tokens."""
    with httpx.Client(timeout=60) as client:
        found = {name: naive.HttpModel(three[name], client) for name in ("sums", "words")}
        for model in found.values():
            model.depth = model.size
            model.next(model.vocabulary.encode(b"Q"))  # after which the bytes of all tokens are known
        yield found


@pytest.mark.parametrize("count", partly([2, 10]))
@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_the_mean_of_a_model_with_itself_is_its_own(pair: Pair, name: str, count: int) -> None:
    method = Average(weights=(1, 2), ahead=4)
    async with connect(pair[name]) as alone, Fusion(models=[pair[name], pair[name]], method=method) as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
        wanted: list[bytes] = []
        for prompt in PROMPTS[:count]:
            written = alone.generate(Context(prompt, b""), max_tokens=30, usage=Usage())
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
            written = alone.generate(Context(prompt, b""), max_tokens=3, usage=Usage())
            wanted = b"".join([token.data async for token in written if isinstance(token, Token)])
            assert result.text.encode() == wanted


@pytest.mark.parametrize("count", partly([3, 12]))
@pytest.mark.parametrize("weights", partly([(0.5, 0.5), (0.7, 0.3)]))
@pytest.mark.parametrize("direction", PAIRS, ids="-".join)
async def test_the_mean_of_two_models(
    three: Three,
    models: Mapping[str, naive.HttpModel],
    direction: tuple[str, str],
    weights: tuple[float, float],
    count: int,
) -> None:
    """Every token is the largest of the mean over the whole vocabulary."""
    method = Average(weights=weights, ahead=4)
    asked: Any = [models[name] for name in direction]
    excused = accented = 0
    sources: set[str] = set()
    async with Fusion(models=[three[name] for name in direction], method=method) as fusion:
        for prompt in FOR_TWO[:count]:
            try:
                result = await fusion.generate(prompt, max_tokens=30)
            except UnsupportedError as error:
                if "one character of several tokens" not in str(error):
                    raise
                accented += 1
                continue
            if not result.text.isascii():  # where all models write such a letter, it stands
                accented += 1
                continue
            wanted, _ = average(prompt.encode(), asked, weights, max_tokens=30)
            texts = result.text.encode(), wanted.text
            if tied(prompt.encode(), asked, texts, mixed=lambda lists: mean(lists, weights)):
                excused += 1
                continue
            assert (result.text.encode(), result.finish_reason) == (wanted.text, wanted.finish_reason), prompt
            assert result.trace.replay() == result.text
            sources |= {token.source for token in result.tokens}
    assert excused <= MAY_TIE
    assert accented <= MAY_HAVE_ACCENTS
    assert sources == {"draft", "assistant"} or count < 12 or weights[0] > weights[1]
