"""Log-likelihoods and samples of a real model beside itself: its own, after its own ids."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier, collect
from live_real.prompts import PROMPTS

COUNT, LENGTH = 4, 64
NEAR = 0.02  # nats a token: a server reads a token a little differently from what it writes


@dataclass(frozen=True)
class Written:
    """An answer of the model by itself: its ids, and their log probabilities as far as they are shown."""

    prompt: str
    text: str
    ids: list[int]
    logprobs: list[float]


@pytest.fixture(scope="module")
def written(draft: str) -> list[Written]:
    """What its server writes, asked without this library."""
    found: list[Written] = []
    with httpx.Client(base_url=draft, timeout=120) as client:
        for prompt in PROMPTS[:COUNT]:
            conversation = {"messages": [{"role": "user", "content": prompt}]}
            body = {
                "prompt": client.post("/apply-template", json=conversation).json()["prompt"],
                "n_predict": LENGTH,
                "temperature": 0,
                "samplers": ["temperature"],
                "return_tokens": True,
                "n_probs": 1,
            }
            answer = client.post("/completion", json=body).json()
            shown = [one["logprob"] for one in answer["completion_probabilities"]]
            found.append(Written(prompt, answer["content"].rstrip("\ufffd"), answer["tokens"], shown))
    return found


async def test_the_model_with_itself_has_its_own_likelihood(draft: str, assistant: str, written: list[Written]) -> None:
    """Of what it writes alone: each token is its greedy one, and as probable as it was when it was written."""
    checked, worst, greedy, tokens = 0, 0.0, 0, 0
    async with Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
        for own in written:
            found = await fusion.log_likelihood([{"role": "user", "content": own.prompt}], own.text)
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
    draft: str, assistant: str, written: list[Written], unit: str
) -> None:
    given = [
        {"prompt": [{"role": "user", "content": one.prompt}], "answer": one.text, "ends": False} for one in written
    ]
    found = await collect(given, draft=draft, assistant=assistant, unit="word" if unit == "word" else None)
    assert (found.contexts, found.unit) == ("ids", unit)
    right = sum(one.label == 0 for example in found.examples for one in example.samples)
    sys.stderr.write(f"\n{found.positions} places: {found.agreeing} agree, {right} right, {found.skipped} skipped\n")
    assert found.agreeing >= found.positions - 2  # near ties
    assert right >= found.positions - 2
    assert found.skipped <= 2
