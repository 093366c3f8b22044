"""Models with the same ids on real llama.cpp servers: a model fused with itself writes what it writes alone."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.demo.servers import MODELS, serve
from cosd_providers import connect
from cosd_providers.contract import Context, Token
from cosd_providers.slots import Lease
from cosd_providers.usage import Usage

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


def written_alone(url: str, prompt: str) -> str:
    """The text that the server itself writes, asked without this library."""
    body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "samplers": ["temperature"], "cache_prompt": False}
    text: str = httpx.post(f"{url}/completion", json=body, timeout=60).json()["content"]
    return text


async def test_both_roles_on_the_only_slot_of_one_server(one_slot: str) -> None:
    """The assistant waits for the draft, and the answer ends."""
    async with Fusion(draft=one_slot, assistant=one_slot, verifier=EVERYWHERE) as fusion:
        results = [await fusion.generate(prompt, max_tokens=24, timeout=60) for prompt in PROMPTS[:3]]
    for prompt, result in zip(PROMPTS, results, strict=False):
        assert result.settings.contexts == "ids"
        assert result.text == written_alone(one_slot, prompt)
        assert result.replacements == 0


@pytest.mark.parametrize("draft_length", [None, 3])
async def test_eight_answers_on_four_slots(four_slots: str, one_slot: str, draft_length: int | None) -> None:
    """With more answers than slots none is named, and each answer is the one that it is by itself."""
    async with Fusion(draft=four_slots, assistant=four_slots, verifier=EVERYWHERE, draft_length=draft_length) as fusion:
        results = [result async for result in fusion.map(PROMPTS, max_tokens=24, concurrency=8)]
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.text == written_alone(one_slot, prompt)
        assert result.replacements == 0


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


async def test_a_session_stays_in_its_slot(four_slots: str) -> None:
    async with connect(four_slots) as provider, provider.session() as draft, provider.session() as other:
        for view, prompt in ((draft, PROMPTS[0]), (other, PROMPTS[1])):
            await view.next_tokens([Context(prompt, b"", ())], usage=Usage())
        first, second = slot(draft), slot(other)
        assert first is not None and second is not None and first != second
        for _ in range(3):
            items = [item async for item in draft.generate(Context(PROMPTS[0], b"", ()), max_tokens=3, usage=Usage())]
            ids = tuple(item.id or 0 for item in items if isinstance(item, Token))
            await other.next_tokens([Context(PROMPTS[1], b"", ids)], usage=Usage())
        assert (slot(draft), slot(other)) == (first, second)


async def test_a_slot_of_the_users_own_is_left_alone(four_slots: str) -> None:
    async with connect(four_slots, extra_body={"id_slot": 2}) as provider, provider.session() as view:
        await view.next_tokens([Context(PROMPTS[0], b"", ())], usage=Usage())
        assert slot(view) is None


def slot(view: object) -> int | None:
    """The slot that a session of llama.cpp keeps to."""
    lease: Lease = view._lease  # type: ignore[attr-defined]
    return lease.fields.get("id_slot")
