"""What the bundled models were made for: neither answers a mixed question alone, both together do."""

from __future__ import annotations

import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.demo.questions import is_right, sample
from cosd_api.demo.servers import Pair

pytestmark = pytest.mark.live


async def accuracy(pair: Pair, draft: str, assistant: str, verifier: RuleVerifier) -> float:
    questions = sample("mixed", 200, seed=21)
    async with Fusion(draft=pair[draft], assistant=pair[assistant], verifier=verifier) as fusion:
        answers = [result.text async for result in fusion.map([question.prompt for question in questions])]
    return sum(map(is_right, questions, answers)) / len(questions)


async def test_two_hundred_held_out_mixed_questions(pair: Pair) -> None:
    ways = [("sums", "facts"), ("facts", "sums")]
    alone = [await accuracy(pair, *way, RuleVerifier(alpha=0)) for way in ways]
    fused = [await accuracy(pair, *way, RuleVerifier()) for way in ways]
    assert max(alone) < 0.1
    assert max(fused) >= 0.85
