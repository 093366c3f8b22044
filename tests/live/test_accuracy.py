"""What the bundled models were made for: neither answers a mixed question alone, both together do."""

from __future__ import annotations

import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.questions import is_right, sample
from cosd_api.apps.demo.servers import Pair
from support.drawn import partly

pytestmark = pytest.mark.live


async def accuracy(pair: Pair, draft: str, assistant: str, verifier: RuleVerifier, count: int) -> float:
    questions = sample("mixed", count, seed=21)
    async with Fusion(draft=pair[draft], assistant=pair[assistant], verifier=verifier) as fusion:
        answers = [result.text async for result in fusion.map([question.prompt for question in questions])]
    return sum(map(is_right, questions, answers)) / len(questions)


@pytest.mark.parametrize("count", partly([12, 60]))
async def test_held_out_mixed_questions(pair: Pair, count: int) -> None:
    ways = [("sums", "facts"), ("facts", "sums")]
    alone = [await accuracy(pair, *way, RuleVerifier(alpha=0), count) for way in ways]
    fused = [await accuracy(pair, *way, RuleVerifier(), count) for way in ways]
    assert max(alone) < 0.1
    assert max(fused) >= 0.85
