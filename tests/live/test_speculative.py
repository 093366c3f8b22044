"""Greedy speculative decoding over real llama.cpp servers: a model that is helped by itself, or by another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from cosd_api import Fusion, MatchVerifier
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, Three
from cosd_api.types import FusedToken
from cosd_providers import UnsupportedError, connect
from cosd_providers.contract import Context, Token
from cosd_providers.usage import Usage
from naive import over_http as naive
from naive import reference
from support.drawn import partly
from support.near_ties import tied
from support.one_tokenizer import MAY_TIE, PAIRS
from support.one_tokenizer import PROMPTS as FOR_TWO

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=8)]


@pytest.mark.parametrize("count", partly([2, 20]))
@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_a_model_that_is_helped_by_itself_writes_its_own_text(pair: Pair, name: str, count: int) -> None:
    async with (
        connect(pair[name]) as alone,
        Fusion(draft=pair[name], assistant=pair[name], verifier=MatchVerifier()) as fusion,
    ):
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
        wanted: list[bytes] = []
        for prompt in PROMPTS[:count]:
            written = alone.generate(Context(prompt, b""), max_tokens=30, usage=Usage())
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


@pytest.mark.parametrize("count", partly([4, 20]))
@pytest.mark.parametrize("direction", PAIRS, ids="-".join)
async def test_the_text_is_the_assistants(
    three: Three, naively: Mapping[str, naive.HttpModel], direction: tuple[str, str], count: int
) -> None:
    """Token by token the assistant is asked what it would write, and its token stands."""
    draft, assistant = direction
    async with Fusion(draft=three[draft], assistant=three[assistant], verifier=MatchVerifier()) as fusion:
        results = [result async for result in fusion.map(FOR_TWO[:count], max_tokens=30)]
    assert sum(result.replacements or 0 for result in results) > 0
    models: Any = [naively[draft], naively[assistant]]
    excused = 0
    for prompt, result in zip(FOR_TWO, results, strict=False):
        wanted = reference.fuse(
            prompt.encode(),
            models[0],
            models[1:],
            lambda p, q: True,
            unit="token",
            max_tokens=30,
        )
        if tied(prompt.encode(), models[1:], (result.text.encode(), wanted.text)):
            excused += 1
            continue
        assert (result.text.encode(), result.finish_reason) == (wanted.text, wanted.finish_reason), prompt
        assert result.trace.replay() == result.text
    assert excused <= MAY_TIE


async def test_two_tokenizers_are_refused(pair: Pair) -> None:
    async with Fusion(draft=pair.sums, assistant=pair.facts, method="speculative", temperature=1) as fusion:
        with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
            await fusion.generate(PROMPTS[0])
