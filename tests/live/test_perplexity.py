"""Rerank and Cool-Fusion on real llama.cpp servers: the answers are those of a naive script over plain HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from cosd_api import CoolFusion, Fusion, FusionResult, Rerank
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Three
from cosd_api.extend import Method
from cosd_providers import connect
from naive import cool as naive_cool
from naive import over_http as naive
from support.drawn import partly
from support.method_files import AT
from support.near_ties import CLOSE, closest
from toys import contests

pytestmark = [pytest.mark.live, pytest.mark.timeout(550)]

MAX_TOKENS = 40
PROMPTS = [question.prompt for question in sample("mixed", 4, seed=31)]
FOR_THREE = [question.prompt for question in sample("mixed-all", 4, seed=31)]
ROUNDING = 2e-2  # of texts whose probability is one in a million
METHODS: dict[Method, Callable[..., naive_cool.Answered]] = {
    CoolFusion(): partial(naive_cool.cool, by_ids=True),
    Rerank(): naive_cool.rerank,
    CoolFusion(rerank=True): naive_cool.cool_and_rerank,
}
SETS = [("sums", "facts"), ("facts", "sums"), ("sums", "facts", "words")]
TOKENIZERS = Path(__file__).parents[1] / "models"
"""A folder for each model, with its tokenizer."""


@pytest.fixture(scope="module")
def models(three: Three) -> Iterator[dict[str, naive.HttpModel]]:
    """The servers, asked directly for all probabilities of one place at a time."""
    with httpx.Client(timeout=60) as client:
        found = {name: naive.HttpModel(url, client) for name, url in three.items()}
        for model in found.values():
            model.depth = model.size
        yield found


async def compared(
    three: Three,
    models: dict[str, naive.HttpModel],
    names: Sequence[str],
    method: Method,
    prompts: Sequence[str],
    expected: Callable[..., naive_cool.Answered],
    *,
    tokenizers: bool = False,
) -> list[FusionResult]:
    providers = [connect(three[name], tokenizer=TOKENIZERS / name if tokenizers else None) for name in names]
    async with Fusion(models=providers, method=method) as fusion:
        results = [result async for result in fusion.map(prompts, max_tokens=MAX_TOKENS, concurrency=2)]
    excused = 0
    for prompt, result in zip(prompts, results, strict=True):
        asked: Any = [models[name] for name in names]
        wanted = expected(prompt.encode(), asked, max_tokens=MAX_TOKENS)
        try:
            contests.check(result, wanted, rounding=ROUNDING)
        except AssertionError:
            if not (contests.is_close(result, ROUNDING) or closest(prompt.encode(), asked, wanted.text) < CLOSE):
                raise
            excused += 1
    assert excused <= 1
    return results


@pytest.mark.parametrize("count", partly([2, 4]))
@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_the_answers_are_those_of_the_naive_script(
    three: Three, models: dict[str, naive.HttpModel], names: tuple[str, ...], method: Method, count: int
) -> None:
    await compared(three, models, names, method, (PROMPTS if len(names) == 2 else FOR_THREE)[:count], METHODS[method])


def words_of(name: str) -> naive_cool.Split:
    """The words into which a model's tokenizer splits a text before it encodes them."""
    splitter = Tokenizer.from_file(str(TOKENIZERS / name / "tokenizer.json")).pre_tokenizer

    def split(text: str) -> list[str]:
        ends = [0, *(end for _, (_, end) in splitter.pre_tokenize_str(text))]
        return [text[start:end] for start, end in pairwise(ends)]

    return split


@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_segments_end_at_the_words_of_the_models_own_tokenizers(
    three: Three, models: dict[str, naive.HttpModel], names: tuple[str, ...]
) -> None:
    """Common to all, or each model's own: `sums` splits a number into digits, and `facts` does not."""
    prompts, splits = (PROMPTS if len(names) == 2 else FOR_THREE)[:3], [words_of(name) for name in names]
    found = {
        align: await compared(
            three,
            models,
            names,
            CoolFusion(align=align),
            prompts,
            partial(naive_cool.cool, align=align, splits=splits, by_ids=True),
            tokenizers=True,
        )
        for align in (False, True)
    }
    common, own = (
        [[one.candidates[one.winner].text for one in result.segments] for result in found[align]] for align in found
    )
    assert common != own


@pytest.mark.parametrize("method", partly([AT["route"], "rerank"]))
async def test_the_estimate_holds_the_prompts_by_which_a_text_is_scored(three: Three, method: str) -> None:
    expected = billed = 0
    async with Fusion(models=[three["sums"], three["facts"]], method=method) as first:
        lengths = {prompt: len((await first.generate(prompt, max_tokens=MAX_TOKENS)).tokens) for prompt in PROMPTS[:3]}
    for prompt, length in lengths.items():
        async with Fusion(models=[three["sums"], three["facts"]], method=method) as fusion:  # without past answers
            estimate = await fusion.estimate(prompt, max_tokens=length)
            result = await fusion.generate(prompt, max_tokens=length)
        spent = sum(usage.billed_tokens for usage in result.usage.values())
        assert spent <= estimate.billed_tokens.high
        expected, billed = expected + estimate.billed_tokens.expected, billed + spent
    assert expected / 2 <= billed <= 2 * expected
