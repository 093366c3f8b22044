"""Log-likelihoods and samples of a real model beside itself: its own, after its own ids."""

from __future__ import annotations

import math
import sys

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier, collect
from live_real.alone import LENGTH, Alone
from live_real.prompts import PROMPTS

NEAR = 0.02  # of a token's log probability, which a server reads a little differently from what it writes


def told(url: str, prompt: str) -> list[float]:
    """The log probabilities of the model's own answer, as its server wrote it."""
    with httpx.Client(base_url=url, timeout=120) as client:
        conversation = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "prompt": client.post("/apply-template", json=conversation).json()["prompt"],
            "n_predict": LENGTH,
            "temperature": 0,
            "samplers": ["temperature"],
            "n_probs": 1,
        }
        found = client.post("/completion", json=body).json()["completion_probabilities"]
        return [one["logprob"] for one in found]


async def test_the_model_with_itself_has_its_own_likelihood(
    draft: str, assistant: str, alone: dict[str, Alone]
) -> None:
    """Of what it writes alone: each token is its greedy one, and as probable as it was when it was written."""
    verifier, checked, worst = RuleVerifier(alpha=1, beta=1), 0, 0.0
    async with Fusion(draft=draft, assistant=assistant, verifier=verifier) as fusion:
        for prompt in PROMPTS[:8]:
            own, probs = alone[prompt], told(draft, prompt)
            found = await fusion.log_likelihood([{"role": "user", "content": prompt}], own.text)
            assert "".join(token.text for token in found.tokens) == own.text
            assert {token.source for token in found.tokens} == {"draft"}
            if len(found.tokens) > len(own.ids) or len(probs) < len(found.tokens):
                continue  # it wrote ids that are not its tokenizer's, or parts of characters, which have no event
            checked += 1
            mean = abs(found.total - math.fsum(probs[: len(found.tokens)])) / len(found.tokens)
            worst = max(worst, mean)
            assert sum(token.is_greedy for token in found.tokens) >= len(found.tokens) - 1
    sys.stderr.write(f"\n{checked} texts; at most {worst:.2g} nats a token from what was written\n")
    assert checked >= 6
    assert worst < NEAR


@pytest.mark.parametrize("unit", ["token", "word"])
async def test_the_model_held_to_its_own_text_agrees_with_itself(
    draft: str, assistant: str, alone: dict[str, Alone], unit: str
) -> None:
    given = [
        {"prompt": [{"role": "user", "content": one}], "answer": alone[one].text, "ends": False} for one in PROMPTS[:8]
    ]
    found = await collect(given, draft=draft, assistant=assistant, unit="word" if unit == "word" else None)
    assert (found.contexts, found.unit) == ("ids", unit)
    sys.stderr.write(f"\n{found.positions} places: {found.agreeing} agree, {found.skipped} skipped\n")
    assert found.agreeing >= found.positions - 2  # near ties
    assert found.skipped <= found.positions // 100
