"""The rule for models with different ids, forced on a real model with itself: it writes what it writes alone.

Where it does not, the model itself wrote ids that its own tokenizer does not make of that text, or its server is of two
minds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import httpx
import pytest

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.paths import restart, units
from cosd_providers import Provider, Token, connect
from cosd_providers.strategies import Strategy
from cosd_providers.text import whole
from live_real.alone import LENGTH, NOISE, Alone, lead_over
from live_real.prompts import PROMPTS

NEAR = 64  # characters within which a place is encoded


@contextmanager
def common_boundaries() -> Iterator[None]:
    """End units and replacements at every common boundary of the two encodings, not only where words end."""

    def between_characters(tokens: Sequence[Token], count: int) -> bool:
        data = b"".join(token.data for token in tokens[:count])
        return whole(data) == len(data)

    with (
        patch.object(units, "ends_unit", lambda _text, _at: True),
        patch.object(restart, "completes", between_characters),
    ):
        yield


def parts(url: str, ids: Sequence[int | None], text: str) -> int | None:
    """The character from which on the ids of a text are not those that its tokenizer makes of it; None if they are."""
    with httpx.Client(base_url=url, timeout=120) as client:
        made: list[int] = client.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
        at = next((n for n, (one, other) in enumerate(zip(made, ids, strict=False)) if one != other), None)
        if at is None:
            return None
        return len(client.post("/detokenize", json={"tokens": made[:at]}).json()["content"])


def parted(one: str, other: str) -> int:
    """The number of characters that two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (left, right) in pairs if left != right), min(len(one), len(other)))


async def fused(
    draft: str, assistant: str | Provider, prompts: Sequence[str], verifier: RuleVerifier
) -> list[FusionResult]:
    async with Fusion(draft=draft, assistant=assistant, verifier=verifier, unit="word") as fusion:
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        return [await fusion.generate(one, max_tokens=LENGTH) for one in conversations]


ALL = pytest.param(1.0, len(PROMPTS), "watch", marks=pytest.mark.extended, id="everywhere")
CASES = [ALL, (1.0, 4, "watch"), (0.5, 3, "singles"), (1.0, 2, "singles")]


@pytest.mark.parametrize(("bound", "count", "way"), CASES)
async def test_the_model_with_itself_writes_what_it_writes_alone(
    draft: str, assistant: str, alone: dict[str, Alone], bound: float, count: int, way: Strategy
) -> None:
    prompts = PROMPTS[:count]
    asked = connect(assistant, engine="llama.cpp", strategy=way)
    results = await fused(draft, asked, prompts, RuleVerifier(alpha=bound, beta=bound))
    different: list[str] = []
    for prompt, result in zip(prompts, results, strict=True):
        own = alone[prompt]
        assert (result.settings.contexts, result.settings.unit) == ("ids", "word")
        assert result.trace.replay() == result.text
        assert sum(len(token.decisions) for token in result.tokens) > 0
        if result.text == own.text:
            continue
        at = parted(result.text, own.text)
        different.append(f"{prompt!r} from character {at} on: {own.text[max(0, at - 20) : at + 20]!r}")
        strange = parts(draft, own.ids, own.text)
        if strange is None or strange > at + NEAR:
            ids = [token.id for token in result.tokens]
            first = next(n for n, (mine, its) in enumerate(zip(ids, own.ids, strict=False)) if mine != its)
            lead = lead_over(draft, prompt, own.ids[:first], own.ids[first], ids[first] or 0)
            assert abs(lead) < NOISE, different[-1]
    unjudged, off_path = (sum(getattr(one, name) for one in results) for name in ("unjudged", "off_path"))
    words = f"{count - len(different)} of {count} equal; {unjudged} units unjudged, {off_path} asked after a cut text"
    usages = [result.usage["assistant"] for result in results]
    requests, tokens = sum(one.requests for one in usages), sum(len(result.tokens) for result in results)
    words += f"; {requests} requests for {tokens} tokens, {sum(one.completion_tokens for one in usages)} written"
    sys.stderr.write("\n" + "\n".join([words, *different]) + "\n")
    assert len(different) <= max(1, count // 20)
    if way == "watch":
        assert {name for one in usages for name in one.strategies} == {"watch"}
        assert requests <= 0.02 * tokens


@pytest.mark.extended
async def test_a_genuine_pair_with_units_of_one_token_writes_what_the_rule_for_the_same_ids_writes(
    shorter: str, assistant: str
) -> None:
    """Units that end at each common boundary, of models with one tokenizer, are tokens.

    One answer of four may part where a server that reads many tokens at once has other numbers (see `lead_over`).
    """
    prompts = [PROMPTS[n] for n in (0, 10, 20, 33)]  # none has emoji: parts of a character are one unit
    with common_boundaries():
        units = await fused(shorter, assistant, prompts, RuleVerifier.paper())
    async with Fusion(draft=shorter, assistant=assistant, verifier=RuleVerifier.paper()) as fusion:
        tokens = [await fusion.generate([{"role": "user", "content": one}], max_tokens=LENGTH) for one in prompts]
    different: list[str] = []
    for prompt, one, other in zip(prompts, units, tokens, strict=True):
        assert (one.settings.unit, other.settings.unit) == ("word", "token")
        if one.text == other.text:
            assert one.replacements == other.replacements
            continue
        at = parted(one.text, other.text)
        strange = [parts(shorter, [token.id for token in result.tokens], result.text) for result in (one, other)]
        why = "an uncanonical id" if any(n is not None and n <= at + NEAR for n in strange) else "the server's numbers"
        different.append(f"{prompt!r} from character {at} on, by {why}: {other.text[max(0, at - 20) : at + 20]!r}")
    assert len(different) <= 1, "\n".join(different)
    counts = [sum(one.replacements or 0 for one in results) for results in (units, tokens)]
    words = f"{len(prompts) - len(different)} of {len(prompts)} equal; {counts[0]} and {counts[1]} replacements"
    sys.stderr.write("\n" + "\n".join([words, *different]) + "\n")
    assert min(counts) > 20


@pytest.mark.extended
async def test_a_genuine_pair_replaces_about_as_often_by_words_as_by_tokens(shorter: str, assistant: str) -> None:
    """Words hold several tokens, and are judged by their least probable one."""
    prompts = PROMPTS[:4]
    words = await fused(shorter, assistant, prompts, RuleVerifier.paper())
    async with Fusion(draft=shorter, assistant=assistant, verifier=RuleVerifier.paper()) as fusion:
        tokens = [await fusion.generate([{"role": "user", "content": one}], max_tokens=LENGTH) for one in prompts]
    counts = [sum(one.replacements or 0 for one in results) for results in (words, tokens)]
    sys.stderr.write(f"\n{counts[0]} replacements by words, {counts[1]} by tokens\n")
    assert min(counts) > 20
    assert 0.5 * counts[1] <= counts[0] <= 1.5 * counts[1]
    assert all(result.trace.replay() == result.text for result in words)
