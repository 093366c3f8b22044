"""Co-LLM over a real llama.cpp server that reports hidden states: the naive script asks for one place at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_api import CoLLMVerifier, Defer, Example, Fusion, collect, probe, train_deferral
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import MODELS, Pair, serve
from cosd_api.forcing.samples import state_from_text
from cosd_providers import UnsupportedError, Usage, connect
from cosd_providers.contract import Context, HiddenStates, Token
from naive import co_llm as naive_co_llm
from naive import over_http as naive
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=14)]
CLOSE = 5e-3  # probabilities: a batch and a single token differ in the last digits
MAY_DIFFER = 4  # answers of 50, and each only where it was close


@dataclass
class StatedModel(naive.HttpModel):
    """A server that also reports hidden states, asked by plain HTTP; what it said is remembered."""

    known: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def state(self, ids: Sequence[int]) -> list[float]:
        """The last hidden state behind all of these ids."""
        key = tuple(ids)
        if key not in self.known:
            answer = self.client.post(f"{self.url}/embedding", json={"content": [*key]}).json()
            assert len(answer[0]["embedding"]) == len(key)
            self.known[key] = answer[0]["embedding"][-1]
        return self.known[key]


@pytest.fixture(scope="module")
def draft() -> Iterator[str]:
    """The model of `sums`, with embeddings."""
    with serve(MODELS / "sums.gguf", embeddings=True) as server:
        yield server.url


@pytest.fixture(scope="module")
def stated(draft: str) -> Iterator[StatedModel]:
    with httpx.Client(timeout=60) as client:
        yield StatedModel(draft, client)


def gate(model: StatedModel) -> CoLLMVerifier:
    """A gate of random weights that opens at one place in five, as far as some prompts show."""
    rng = random.Random(3)
    encoded = [model.vocabulary.encode(prompt.encode()) for prompt in PROMPTS[:3]]
    states = [model.state(ids[:at]) for ids in encoded for at in range(4, len(ids), 6)]
    weights = [rng.gauss(0, 1) / 200 for _ in states[0]]
    scores = sorted(sum(a * b for a, b in zip(weights, state, strict=True)) for state in states)
    return CoLLMVerifier(width=len(weights), bias=-scores[4 * len(scores) // 5], weights=tuple(weights), eta=0.5)


@pytest.mark.parametrize("count", partly([2, 20]))
async def test_the_text_is_the_naive_one(draft: str, stated: StatedModel, pair: Pair, count: int) -> None:
    """Of two tokenizers that are said to be one, as in the test of `defer`."""
    one = gate(stated)
    opened, excused = 0, list[str]()
    with httpx.Client(timeout=60) as client:
        other = naive.HttpModel(pair.facts, client)
        async with Fusion(draft=draft, assistant=pair.facts, method=Defer(gate=one), unit="token") as fusion:
            results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
        for prompt, result in zip(PROMPTS, results, strict=False):
            wanted, seen = naive_co_llm.naive(prompt.encode(), stated, other, one, stated.state, max_tokens=30)
            opened += sum(token.asked for token in result.tokens)
            assert result.trace.replay() == result.text
            pairs = zip_longest(
                [(token.data, token.asked) for token in result.tokens],
                [(token.data, place.opens) for token, place in zip(wanted.tokens, seen, strict=True)],
            )
            different = next((at for at, (mine, its) in enumerate(pairs) if mine != its), None)
            if different is not None:
                assert min(place.margin for place in seen[: different + 1]) < CLOSE, (prompt, result.text, wanted.text)
                excused.append(prompt)
    assert opened or count < 20
    assert len(excused) <= MAY_DIFFER


async def test_states_are_those_of_the_server(draft: str, stated: StatedModel) -> None:
    """Of a draft in two stretches, and of its text; and it is the draft that it is without them."""
    prompt = PROMPTS[0]
    async with connect(draft) as provider:
        width = (await provider.describe()).capabilities.hidden_states
        assert isinstance(provider, HiddenStates)
        stream = provider.generate_with_states(Context(prompt, b""), max_tokens=24, usage=Usage())
        tokens = [item async for item in stream if isinstance(item, Token)]
        answer = b"".join(token.data for token in tokens)
        found = await provider.hidden_states(Context(prompt, answer), usage=Usage())
    assert width > 1
    for at in (0, len(tokens) - 1):
        before = b"".join(token.data for token in tokens[:at])
        expected = stated.state(stated.vocabulary.encode(prompt.encode() + before))
        state = tokens[at].state
        assert state is not None
        assert list(state) == pytest.approx(expected, rel=0.05, abs=0.1)
        assert list(found[len(before)]) == pytest.approx(expected, rel=0.05, abs=0.1)


@pytest.mark.extended
async def test_the_probe_proves_it(draft: str, pair: Pair) -> None:
    report = await probe(draft)
    assert report["hidden_states"].value is True, report["hidden_states"].seen
    assert (await probe(pair.sums))["hidden_states"].value is False


@pytest.mark.extended
async def test_a_gate_is_trained_on_live_samples_and_decides(
    draft: str, stated: StatedModel, pair: Pair, tmp_path: Path
) -> None:
    examples = [Example(prompt=one.prompt, answer=one.answer) for one in sample("mixed", 12, 5, held_out=False)]
    found = await collect(examples, draft=draft, assistant=pair.facts, unit="token", hidden_states=True)
    first = found.examples[0]
    assert isinstance(first.example.prompt, str)
    before, answer = first.example.prompt.encode(), first.example.answer.encode()
    for place in (first.deferral or ())[:4]:
        expected = stated.state(stated.vocabulary.encode(before + answer[: place.start]))
        state = state_from_text(place.state or "", found.hidden_states or 0)
        assert list(state) == pytest.approx(expected, rel=0.05, abs=0.1)
    training = train_deferral(found, hidden_states=True)
    assert training.losses["gate"] < training.losses["draft"]
    training.gate.save(tmp_path / "gate.json")
    method = Defer(gate=tmp_path / "gate.json")
    async with Fusion(draft=draft, assistant=pair.facts, method=method, unit="token") as fusion:
        results = [result async for result in fusion.map(PROMPTS[:6], max_tokens=30)]
    assert all(result.trace.replay() == result.text for result in results)
    options: dict[str, Any] = {"draft": pair.facts, "assistant": draft, "unit": "token"}
    async with Fusion(**options, method=method) as fusion:
        with pytest.raises(UnsupportedError, match="the draft does not report hidden states") as refused:
            await fusion.generate(PROMPTS[0])
    assert "Start its server with --embeddings --pooling none." in refused.value.hint
    assert "looks at lists of tokens" in refused.value.hint
