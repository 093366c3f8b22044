"""Steps on real llama.cpp servers: the answers are those of a naive script over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cosd_api import Fusion, FusionResult, Message, Steps
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Usage, connect
from cosd_providers.contract import Token
from naive import over_http as naive
from naive import steps as naive_steps
from support.asked import draft, in_turn
from support.drawn import partly
from toys import contests

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

MAX_TOKENS = 30
WORDS: dict[str, Any] = {"question": "Q: What is 4 plus 3?", "cue": "A: The sum is"}
"""A request for a score that models of sums and capitals can answer with a digit."""
METHOD = Steps(keep=5, step_tokens=4, **WORDS)
PROMPTS = in_turn(20, seed=41)
CLOSE = 1e-3
"""Difference of two probabilities that a batch and a single token may order differently."""


@pytest.mark.parametrize("count", partly([3, 20]))
@pytest.mark.parametrize("names", [("sums", "facts"), ("facts", "sums"), ("sums", "sums")], ids="-".join)
async def test_the_answers_are_the_naive_ones(
    pair: Pair, naively: Mapping[str, naive.HttpModel], names: tuple[str, str], count: int
) -> None:
    async with Fusion(draft=pair[names[0]], assistant=pair[names[1]], method=METHOD) as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=MAX_TOKENS, concurrency=4)]
    models = [naively[name] for name in names]
    excused = [one for one, result in zip(PROMPTS, results, strict=False) if not same(result, one, models)]
    assert len(excused) <= max(1, count // 10)
    assert all(len(result.segments) > 1 for result in results)


@pytest.mark.parametrize("count", partly([2, 20]))
@pytest.mark.parametrize("names", [("sums", "facts"), ("facts", "sums")], ids="-".join)
async def test_over_routes_that_continue_nothing(
    pair: Pair, naively: Mapping[str, naive.HttpModel], names: tuple[str, str], count: int
) -> None:
    """By messages alone, without probabilities."""
    models = [naively[name] for name in names]
    draft, assistant = (connect(pair[name], engine="openai", api="messages") for name in names)

    def render(at: int, messages: Sequence[tuple[str, str]]) -> str:
        body = {"messages": [{"role": role, "content": content} for role, content in messages]}
        return str(models[at].client.post(f"{models[at].url}/apply-template", json=body).json()["prompt"])

    async with Fusion(draft=draft, assistant=assistant, method=replace(METHOD, again="Go on.")) as fusion:
        given = [[Message("user", prompt)] for prompt in PROMPTS[:count]]
        results = [result async for result in fusion.map(given, max_tokens=MAX_TOKENS, concurrency=4)]
    by_messages: Any = {"render": render, "continues": (False, False), "again": "Go on."}
    excused = [
        one for one, result in zip(PROMPTS, results, strict=False) if not same(result, one, models, **by_messages)
    ]
    assert len(excused) <= max(1, count // 10)


def same(result: FusionResult, prompt: str, models: Any, **more: Any) -> bool:
    """Test whether an answer is the naive one. It must be, unless two tokens were as good as equal."""
    for model in models:
        model.closest = 1.0
    given: Any = [("user", prompt)] if more else prompt.encode()
    wanted = naive_steps.steps(given, models, max_tokens=MAX_TOKENS, keep=5, step_tokens=4, **WORDS | more)
    try:
        contests.check(result, wanted)
    except AssertionError:
        if min(model.closest for model in models) > CLOSE:
            raise
        return False
    return True


async def test_scores_by_messages_are_those_of_the_assistant(pair: Pair) -> None:
    """Each is asked for again, as a conversation."""
    conversation = [Message("user", "What is the capital of Peru?")]
    async with connect(pair.sums) as assistant, Fusion(draft=pair.facts, assistant=pair.sums, method=METHOD) as fusion:
        model: Any = assistant
        result = await fusion.generate(conversation, max_tokens=12)
        text = ""
        for segment in result.segments:
            mine = segment.candidates[0]
            asked = [Message("assistant", (text + mine.text).rstrip()), Message("user", METHOD.question)]
            turn: Any = await model.render_prompt([*conversation, *asked, Message("assistant", METHOD.cue)])
            written = await draft(turn.provider, turn.prompt, limit=2, usage=Usage())
            reply = next((one.data.strip() for one in written if isinstance(one, Token) and one.data.strip()), b"")
            digit = float(reply) if len(reply) == 1 and reply.isdigit() else None
            assert mine.scores.get("assistant") == digit
            text += segment.candidates[segment.winner].text
    assert result.text == text == result.trace.replay()
