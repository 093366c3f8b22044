"""Greedy speculative decoding over real llama.cpp servers: a model that is helped by itself, or by another one."""

from __future__ import annotations

import pytest

from cosd_api import Fusion
from cosd_api.demo.questions import sample
from cosd_api.demo.servers import Pair
from cosd_providers import UnsupportedError, connect
from cosd_providers.contract import Token
from cosd_providers.usage import Usage
from drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=8)]


@pytest.mark.parametrize("count", partly([2, 50]))
@pytest.mark.parametrize("name", ["sums", "facts"])
async def test_a_model_that_is_helped_by_itself_writes_its_own_text(pair: Pair, name: str, count: int) -> None:
    async with (
        connect(pair[name]) as alone,
        Fusion(draft=pair[name], assistant=pair[name], method="speculative") as fusion,
    ):
        async for result in fusion.map(PROMPTS[:count], max_tokens=30):
            assert result.acceptance_rate == 1
            assert all(token.asked for token in result.tokens)
        wanted: list[bytes] = []
        for prompt in PROMPTS[:count]:
            written = alone.generate(prompt, b"", max_tokens=30, usage=Usage())
            wanted.append(b"".join([token.data async for token in written if isinstance(token, Token)]))
        got = [result.text.encode() async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
    assert got == wanted


async def test_two_tokenizers_are_refused(pair: Pair) -> None:
    async with Fusion(draft=pair.sums, assistant=pair.facts, method="speculative") as fusion:
        with pytest.raises(UnsupportedError, match="not known to have one tokenizer"):
            await fusion.generate(PROMPTS[0])
