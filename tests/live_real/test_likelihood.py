"""Log-likelihoods and samples of a real model beside itself: its own, after its own ids."""

from __future__ import annotations

import math
import sys

import pytest

from cosd_api import Fusion, RuleVerifier, collect
from live_real.alone import Alone, answers
from live_real.prompts import PROMPTS

COUNT, LENGTH = 4, 64
NEAR = 0.02  # nats a token: a server reads a token a little differently from what it writes


@pytest.fixture(scope="module")
def written(own_server: str) -> dict[str, Alone]:
    """The answers of the server itself."""
    return answers(own_server, PROMPTS[:COUNT], length=LENGTH, shown=True)


async def test_the_model_with_itself_has_its_own_likelihood(
    draft: str, assistant: str, written: dict[str, Alone]
) -> None:
    """Of what it writes alone: each token is its greedy one, and as probable as it was when it was written."""
    checked, worst, greedy, tokens = 0, 0.0, 0, 0
    async with Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
        for prompt, own in written.items():
            found = await fusion.log_likelihood([{"role": "user", "content": prompt}], own.text)
            assert "".join(token.text for token in found.tokens) == own.text
            assert {token.source for token in found.tokens} == {"draft"}
            count = len(found.tokens)
            if len(own.logprobs) < count or len(own.ids) - count not in (0, 1):
                continue  # it wrote ids that are not its tokenizer's, or parts of characters, which have no event
            checked += 1
            tokens += count
            greedy += sum(token.is_greedy for token in found.tokens)
            worst = max(worst, abs(found.total - math.fsum(own.logprobs[:count])) / count)
    sys.stderr.write(f"\n{checked} texts, {greedy} of {tokens} tokens greedy; {worst:.2g} nats a token from writing\n")
    assert checked >= COUNT - 2
    assert greedy >= tokens - 2  # near ties
    assert worst < NEAR


@pytest.mark.parametrize("unit", ["token", "word"])
async def test_the_model_held_to_its_own_text_agrees_with_itself(
    draft: str, assistant: str, written: dict[str, Alone], unit: str
) -> None:
    given = [
        {"prompt": [{"role": "user", "content": prompt}], "answer": one.text, "ends": False}
        for prompt, one in written.items()
    ]
    found = await collect(given, draft=draft, assistant=assistant, unit="word" if unit == "word" else None)
    assert (found.contexts, found.unit) == ("ids", unit)
    right = sum(one.label == 0 for example in found.examples for one in example.samples)
    sys.stderr.write(f"\n{found.positions} places: {found.agreeing} agree, {right} right, {found.skipped} skipped\n")
    assert found.agreeing >= found.positions - 2  # near ties
    assert right >= found.positions - 2
    assert found.skipped <= 2
