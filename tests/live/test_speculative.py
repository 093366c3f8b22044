"""Greedy speculative decoding over real llama.cpp servers: a model that is helped by itself, or by another one."""

from __future__ import annotations

import math

import pytest

from cosd_api import FusedToken, Fusion
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair
from cosd_providers import UnsupportedError, connect
from cosd_providers.contract import Token
from cosd_providers.usage import Usage
from drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=8)]
MAY_TIE = 2  # answers of 50


@pytest.mark.parametrize("count", partly([2, 50]))
@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_a_model_that_is_helped_by_itself_writes_its_own_text(pair: Pair, name: str, count: int) -> None:
    async with (
        connect(pair[name]) as alone,
        Fusion(draft=pair[name], assistant=pair[name], method="speculative") as fusion,
    ):
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
        wanted: list[bytes] = []
        for prompt in PROMPTS[:count]:
            written = alone.generate(prompt, b"", max_tokens=30, usage=Usage())
            wanted.append(b"".join([token.data async for token in written if isinstance(token, Token)]))
    tied = [result for result in results if any(is_tied(token) for token in result.tokens)]
    assert len(tied) <= MAY_TIE
    for result, text in zip(results, wanted, strict=True):
        assert all(token.asked for token in result.tokens)
        if result not in tied:
            assert result.acceptance_rate == 1
            assert result.text.encode() == text


def is_tied(token: FusedToken) -> bool:
    """Test whether a replacement is as probable as what it replaced: one at a time and in a batch, digits differ."""
    p, q = token.draft_prob, token.assistant_prob
    return token.replaced is not None and p is not None and q is not None and math.isclose(p, q, rel_tol=1e-2)


async def test_two_tokenizers_are_refused(pair: Pair) -> None:
    async with Fusion(draft=pair.sums, assistant=pair.facts, method="speculative") as fusion:
        with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
            await fusion.generate(PROMPTS[0])
