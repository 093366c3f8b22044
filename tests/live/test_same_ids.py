"""Models with the same ids on real llama.cpp servers: a model fused with itself writes what it writes alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.servers import MODELS, serve
from cosd_providers import ForwardingProvider, connect
from cosd_providers.strategies import Strategy
from support import each_way

PROMPTS = [f"Q: Add {n} and {n + 7}, then translate snow into French.\nA:" for n in range(31, 39)]
EVERYWHERE = RuleVerifier(alpha=1, beta=1)


@pytest.fixture(scope="module")
def one_slot() -> Iterator[str]:
    with serve(MODELS / "sums.gguf", slots=1) as server:
        yield server.url


@pytest.fixture(scope="module")
def four_slots() -> Iterator[str]:
    with serve(MODELS / "sums.gguf", slots=4) as server:
        yield server.url


@pytest.fixture(scope="module")
def assistant() -> Iterator[str]:
    with serve(MODELS / "words.gguf", slots=4) as server:
        yield server.url


@pytest.fixture(scope="module")
def watched() -> Iterator[str]:
    """The draft's model on another server."""
    with serve(MODELS / "sums.gguf", slots=4) as server:
        yield server.url


def asked(url: str, **body: Any) -> Any:
    """The answer of a server, asked without this library."""
    return httpx.post(url, json=body, timeout=60).json()


def written_alone(url: str, prompt: str) -> str:
    """The text that the server itself writes, asked without this library."""
    body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "samplers": ["temperature"], "cache_prompt": False}
    text: str = asked(f"{url}/completion", **body)["content"]
    return text


async def test_the_other_tokens_of_a_place_are_those_that_the_server_lists(four_slots: str, assistant: str) -> None:
    """Those of a draft token are the draft's, those of a replacement the assistant's; the answer is no other one."""
    authors = set[str]()
    async with Fusion(draft=four_slots, assistant=assistant, tie=0.05) as fusion:
        for prompt in PROMPTS[:4]:
            bare = await fusion.generate(prompt, max_tokens=24)
            listed = await fusion.generate(prompt, max_tokens=24, alternatives=3)
            told = [[(one.id, one.source) for one in result.tokens] for result in (bare, listed)]
            assert told[0] == told[1]
            assert not any(one.alternatives for one in bare.tokens)
            path = asked(f"{four_slots}/tokenize", content=prompt, add_special=True)["tokens"]
            for token in listed.tokens:
                url = four_slots if token.source == "draft" else assistant
                body = {"prompt": path, "n_predict": 1, "temperature": 0, "samplers": ["temperature"], "n_probs": 4}
                [found] = asked(f"{url}/completion", **body)["completion_probabilities"]
                first, *others = found["top_logprobs"]
                assert first["id"] == token.id
                assert [one.data for one in token.alternatives] == [bytes(one["bytes"]) for one in others]
                authors.add(token.source)
                path.append(token.id)
    assert authors == {"draft", "assistant"}


async def test_both_roles_on_the_only_slot_of_one_server(one_slot: str) -> None:
    """The assistant waits for the draft, and the answer ends."""
    async with Fusion(draft=one_slot, assistant=one_slot, verifier=EVERYWHERE) as fusion:
        results = [await fusion.generate(prompt, max_tokens=24, timeout=60) for prompt in PROMPTS[:3]]
    for prompt, result in zip(PROMPTS, results, strict=False):
        assert result.settings.contexts == "ids"
        assert result.text == written_alone(one_slot, prompt)
        assert result.replacements == 0


async def test_wrapped_models_are_asked_after_ids_too(four_slots: str) -> None:
    draft, again = (ForwardingProvider(connect(four_slots)) for _ in range(2))
    messages = [{"role": "user", "content": "What is 3 and 4?"}]
    async with Fusion(draft=draft, assistant=again, verifier=EVERYWHERE) as fusion:
        for prompt in (PROMPTS[0], messages):
            result = await fusion.generate(prompt, max_tokens=24)
            assert (result.settings.contexts, result.replacements) == ("ids", 0)
        assert (await fusion.generate(PROMPTS[0], max_tokens=24)).text == written_alone(four_slots, PROMPTS[0])


async def test_a_watch_and_the_draft_share_the_only_slot(one_slot: str) -> None:
    """The watch does not hold the slot for which the draft waits."""
    again = connect(one_slot, engine="llama.cpp", strategy="watch")
    async with Fusion(draft=one_slot, assistant=again, verifier=EVERYWHERE) as fusion:
        result = await fusion.generate(PROMPTS[0], max_tokens=60, timeout=60)
    assert result.text.startswith(written_alone(one_slot, PROMPTS[0]))
    assert result.replacements == 0


@pytest.mark.parametrize(("draft_length", "way"), [(None, None), (3, None), (None, "watch"), (3, "watch")])
async def test_eight_answers_on_four_slots(
    four_slots: str, one_slot: str, draft_length: int | None, way: Strategy | None
) -> None:
    """With more answers than slots none is named, and each answer is the one that it is by itself."""
    again = connect(four_slots, engine="llama.cpp", strategy=way)
    async with Fusion(draft=four_slots, assistant=again, verifier=EVERYWHERE, draft_length=draft_length) as fusion:
        results = [result async for result in fusion.map(PROMPTS, max_tokens=24, concurrency=8)]
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.text == written_alone(one_slot, prompt)
        assert result.replacements == 0


async def test_each_way_to_ask_gives_one_answer(four_slots: str, assistant: str, watched: str) -> None:
    """Single questions, lists and watches: the same tokens, and the same probabilities but for the last digits."""
    for draft, other, count in ((four_slots, watched, 3), (four_slots, assistant, 8)):
        found = await each_way.fused(draft, other, "llama.cpp", PROMPTS[:count])
        each_way.check_fused(found)
        if other == watched:  # the model with itself
            assert max(result.usage["assistant"].requests for result in found["watch"]) <= 3


async def test_a_long_prompt_is_read_once_by_each_model(four_slots: str, assistant: str) -> None:
    """Restarts and questions find in their slot what was read before, however many slots there are."""
    prompt = "Q: Add 1 and 2.\nA: The sum is 3.\n" * 20 + PROMPTS[0]
    async with Fusion(draft=four_slots, assistant=assistant, verifier=EVERYWHERE) as fusion:
        result = await fusion.generate(prompt, max_tokens=24)
        count = len(await fusion.endpoints.draft.tokenize(prompt))
    assert result.settings.contexts == "ids"
    assert result.replacements, "there was no restart"
    for name, usage in result.usage.items():
        fresh = usage.prompt_tokens - usage.cached_tokens
        assert fresh < 1.1 * count + 3 * usage.requests, (name, fresh, count, usage.requests)


async def test_every_end_of_a_model_ends_an_answer(four_slots: str, assistant: str) -> None:
    """`/props` names only one of the two, and the assistant chooses the other before any answer has ended with it."""
    prompt = "Q: A bag costs 12, a cat costs 12. Total, please! And cat in French?\nA:"
    path = [*asked(f"{assistant}/tokenize", content=prompt)["tokens"]]
    rule = RuleVerifier(alpha=1, beta=0)  # always replaces
    async with Fusion(draft=four_slots, assistant=assistant, unit="token", verifier=rule, tie=0) as fusion:
        result = await fusion.generate(prompt)
    assert (result.text, result.finish_reason, result.stop_reason) == (" The currency of", "stop", "<|im_end|>")
    assert not any(token.end for token in result.tokens[:-1])
    body = {"prompt": path + [token.id for token in result.tokens[:-1]], "n_predict": 1, "temperature": 0}
    alone = asked(f"{assistant}/completion", **body, samplers=["temperature"], return_tokens=True)
    assert (alone["tokens"], alone["stop_type"]) == ([result.tokens[-1].id], "eos")
