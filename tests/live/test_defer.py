"""Deferral over real llama.cpp servers: the text is what a naive script gets that asks them one prefix at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import httpx
import pytest

from cosd_api import Defer, Example, Fusion, FusionResult, collect, train_deferral
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from naive import defer as naive_defer
from naive import over_http as naive
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 50, seed=14)]
GATE = naive_defer.gate(0.37, listed=5, bias=1.2, top=-3.3, entropy=0.9, number=0.4, word=0.6, end=-0.5)
CLOSE = 1e-3  # probabilities: a batch and a single token differ in the last digits
MAY_DIFFER = 3  # answers of 50, and each only where it was close


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers as the naive script sees them; what it asked once it remembers."""
    with httpx.Client(timeout=60) as client:
        yield {name: naive.HttpModel(url, client) for name, url in pair.items()}


@pytest.mark.parametrize("count", partly([3, 20]))
@pytest.mark.parametrize("direction", partly([(one, two) for one in ("sums", "facts") for two in ("facts", "sums")]))
async def test_the_text_is_the_naive_one(
    pair: Pair, models: dict[str, naive.HttpModel], direction: tuple[str, str], count: int
) -> None:
    """Also of two tokenizers that are said to be one: what differs from the draft's token is other bytes."""
    draft, assistant = direction
    opened, excused = 0, []
    async with Fusion(draft=pair[draft], assistant=pair[assistant], method=Defer(gate=GATE), unit="token") as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=30)]
    for prompt, result in zip(PROMPTS, results, strict=False):
        wanted, seen = naive_defer.naive(prompt.encode(), models[draft], models[assistant], GATE, max_tokens=30)
        opened += sum(token.asked for token in result.tokens)
        assert result.trace.replay() == result.text
        pairs = zip_longest(
            in_characters(result),
            [(token.data, place.opens) for token, place in zip(wanted.tokens, seen, strict=True)],
        )
        different = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
        if different is not None:
            assert min(place.margin for place in seen[: different + 1]) < CLOSE, (prompt, result.text, wanted.text)
            excused.append(prompt)
    assert opened or count < 20  # a few answers may leave no doubt
    assert len(excused) <= MAY_DIFFER


def in_characters(result: FusionResult) -> list[tuple[bytes, bool]]:
    """The tokens of an answer, those that share a character as one, and whether an assistant was asked about any."""
    found, data, asked = list[tuple[bytes, bool]](), b"", False
    for token in result.tokens:
        data, asked = data + token.data, asked or token.asked
        if data.decode("utf-8", "ignore").encode() == data:
            found.append((data, asked))
            data, asked = b"", False
    return found


@pytest.mark.extended
async def test_a_gate_is_trained_on_live_samples_and_decides(
    pair: Pair, models: dict[str, naive.HttpModel], tmp_path: Path
) -> None:
    """Of two tokenizers the places count where both cut alike. The first example is looked up by plain HTTP."""
    examples = [Example(prompt=one.prompt, answer=one.answer) for one in sample("mixed", 12, 5, held_out=False)]
    found = await collect(examples, draft=pair.sums, assistant=pair.facts, unit="token", listed=GATE.listed)
    first = found.examples[0]
    assert isinstance(first.example.prompt, str)
    before, answer = first.example.prompt.encode(), first.example.answer.encode()
    for place in (first.deferral or ())[:6]:
        text = before + answer[: place.start]
        token, others, _ = next(naive_defer.following(models["sums"], text))
        assert place.draft == token.data.decode()
        assert token.prob is not None
        assert place.listed == pytest.approx([token.prob, *others[: GATE.listed]], rel=0.05, abs=1e-4)
        for name, prob in (("sums", place.p), ("facts", place.q)):
            vocabulary = models[name].vocabulary
            probs = models[name].next(vocabulary.encode(text))
            likely = [vocabulary.tokens[at] for at, one in enumerate(probs) if one and abs(one - prob) <= 0.05 * one]
            assert any(answer[place.start :].startswith(data) for data in likely) or prob < min(filter(None, probs))
    assert any(place.handed for one in found.examples for place in one.deferral or ())
    training = train_deferral(found)
    assert training.losses["gate"] < training.losses["draft"]
    training.gate.save(tmp_path / "gate.json")
    method = Defer(gate=tmp_path / "gate.json")
    async with Fusion(draft=pair.sums, assistant=pair.facts, method=method, unit="token") as fusion:
        results = [result async for result in fusion.map(PROMPTS[:8], max_tokens=30)]
    assert any(token.asked for result in results for token in result.tokens)
    assert all(result.trace.replay() == result.text for result in results)
