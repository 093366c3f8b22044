"""SAFE on real llama.cpp servers: the answers are those of a naive script over plain HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, FusionResult, Safe
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from naive import over_http as naive
from naive import safe as naive_safe
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

MAX_TOKENS = 30
PROMPTS = [question.prompt for question in sample("mixed", 10, seed=31)]
SETS = [("sums", "facts"), ("facts", "sums"), ("facts", "sums", "facts")]
MAY_DIFFER = 1  # answers of 10 in which two tokens are nearly as probable


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The servers, asked directly for all probabilities of one place at a time."""
    with httpx.Client(timeout=60) as client:
        found = {name: naive.HttpModel(url, client) for name, url in pair.items()}
        for model in found.values():
            model.depth = model.size
            model.next(model.vocabulary.encode(b"Q"))  # which tells all tokens
        yield found


def near(why: tuple[str, Any]) -> bool:
    """Test whether a choice was close: a server's digits differ between one text at a time and several."""
    reason, means = why
    first, *others = sorted(means.values(), reverse=True) if reason == "mixed" else (1.0,)
    return any(math.isclose(first, one, rel_tol=0.02) for one in others[:1]) or math.isclose(first, 0.5, rel_tol=0.02)


def differs(result: FusionResult, wanted: naive_safe.Written) -> bool:
    """Test whether the answers differ, which they may behind a close choice."""
    pairs = zip(result.tokens, wanted.tokens, wanted.why, strict=False)
    at = next((n for n, (one, other, _) in enumerate(pairs) if (one.data, one.end) != (other.data, other.end)), None)
    if at is None:
        assert [one.data for one in result.tokens] == [one.data for one in wanted.tokens]
        return False
    # Where the answer ends inside a token that the drafter has written, it continues behind that token; the script
    # lets it read the text afresh.
    inside = result.tokens[at].id is None and not result.tokens[at].end
    assert inside or near(wanted.why[at]), (result.segments[at], wanted.why[at])
    return True


async def compared(pair: Pair, models: dict[str, naive.HttpModel], names: Sequence[str], prompts: Sequence[str]) -> int:
    """The number of answers that differ, all of them after a close choice."""
    async with Fusion(models=[pair[name] for name in names], method=Safe()) as fusion:
        results = [result async for result in fusion.map(prompts, max_tokens=MAX_TOKENS, concurrency=4)]
    asked: Any = [models[name] for name in names]
    different = 0
    for prompt, result in zip(prompts, results, strict=True):
        different += differs(result, naive_safe.safe(prompt.encode(), asked, max_tokens=MAX_TOKENS))
        assert result.trace.replay() == result.text
        assert not any("could not tell" in warning for warning in result.warnings)
    assert any(segment.reason.startswith(("largest", "with")) for result in results for segment in result.segments)
    return different


@pytest.mark.parametrize("names", partly(SETS), ids="-".join)
async def test_two_prompts(pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...]) -> None:
    await compared(pair, models, names, PROMPTS[:2])


@pytest.mark.extended
@pytest.mark.parametrize("names", SETS, ids="-".join)
async def test_ten_prompts(pair: Pair, models: dict[str, naive.HttpModel], names: tuple[str, ...]) -> None:
    assert await compared(pair, models, names, PROMPTS) <= MAY_DIFFER
