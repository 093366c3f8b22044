"""Models with the same ids on a real vLLM, and on vLLM and llama.cpp together: null control, and raw tokens."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, bundled_pair
from cosd_providers import connect
from cosd_providers.contract import Context, IdContexts, Token
from cosd_providers.usage import Usage

PROMPTS = [question.prompt for question in sample("mixed", 6, seed=31)]
EVERYWHERE = RuleVerifier(alpha=1, beta=1)
CHARACTERS = "Zürich 😀 一 42.\n\n  x"


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Pair]:
    with bundled_pair() as servers:
        yield servers


def written_alone(url: str, model: str, prompt: str) -> str:
    """The text that the server itself writes, asked without this library."""
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
    text: str = httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
    return text


@pytest.mark.parametrize("verifier", [RuleVerifier(), EVERYWHERE], ids=["rule", "everywhere"])
async def test_a_model_with_itself_writes_what_it_writes_alone(
    vllm_pair: Pair, vllm_name: str, verifier: RuleVerifier
) -> None:
    url = str(getattr(vllm_pair, vllm_name))
    async with Fusion(draft=url, assistant=url, verifier=verifier) as fusion:
        results = [result async for result in fusion.map(PROMPTS, max_tokens=24)]
        listed = [result async for result in fusion.map(PROMPTS[:2], max_tokens=24, alternatives=3)]
    for one, bare in zip(listed, results, strict=False):
        assert one.text == bare.text
        assert [len(token.alternatives) for token in one.tokens] == [3] * len(one.tokens)
        shares = [(token.draft_prob or 0, *(other.prob or 0 for other in token.alternatives)) for token in one.tokens]
        assert all([*several] == sorted(several, reverse=True) and sum(several) <= 1.001 for several in shares)
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert result.settings.contexts == "ids"
        assert result.replacements == 0
        assert result.text == written_alone(url, vllm_name, prompt)
        assert result.trace.replay() == result.text


@pytest.mark.parametrize("drafts", ["llama.cpp", "vllm"])
async def test_engines_of_different_kinds_share_ids(
    vllm_pair: Pair, llama_cpp: Pair, vllm_name: str, drafts: str
) -> None:
    """One model on both: the fingerprint of the vocabulary says that ids pass between them."""
    urls = [str(getattr(pair, vllm_name)) for pair in (llama_cpp, vllm_pair)]
    draft, assistant = urls if drafts == "llama.cpp" else reversed(urls)
    async with Fusion(draft=draft, assistant=assistant, verifier=EVERYWHERE) as fusion:
        results = [result async for result in fusion.map(PROMPTS, max_tokens=24)]
    assert {result.settings.contexts for result in results} == {"ids"}
    assert [result.replacements for result in results] == [0] * len(results)


async def test_drafts_by_ids_are_the_models_own_tokens(vllm_pair: Pair, vllm_name: str) -> None:
    """Parts of characters are tokens, and every place of the draft gives the draft's own id."""
    async with connect(str(getattr(vllm_pair, vllm_name))) as provider:
        assert isinstance(provider, IdContexts)
        usage = Usage()
        start = Context(f"Repeat: {CHARACTERS} {CHARACTERS}", b"", ())
        items = [item async for item in provider.generate(start, max_tokens=20, alternatives=2, usage=usage)]
        tokens = [item for item in items if isinstance(item, Token)]
        ids = tuple(token.id or 0 for token in tokens)
        assert len(ids) == 20 or tokens[-1].end
        places = [Context(start.prompt, b"", ids[:count]) for count in range(len(ids))]
        found = await provider.next_tokens(places, usage=usage)
        assert [one.id for one in found if one is not None] == [*ids]
        pieces = await provider.encode(CHARACTERS)
        assert b"".join(piece.data for piece in pieces) == CHARACTERS.encode()
        assert CHARACTERS.strip() in await provider.decode([piece.id for piece in pieces])
