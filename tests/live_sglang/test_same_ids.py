"""Models with the same ids on a real SGLang, and on SGLang with llama.cpp: null control, and every way to ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair, bundled_pair
from cosd_providers import Provider, connect
from cosd_providers.contract import Context, IdContexts, Token
from cosd_providers.strategies import Strategy
from cosd_providers.usage import Usage
from naive.plain_http import PlainSglang
from support import each_way

PROMPTS = [question.prompt for question in sample("mixed", 6, seed=31)]
EVERYWHERE = RuleVerifier(alpha=1, beta=1)
CHARACTERS = "Zürich 😀 一 42."

pytestmark = pytest.mark.parametrize("name", ["sums", "facts"])


@pytest.fixture(scope="module")
def llama_cpp() -> Iterator[Pair]:
    with bundled_pair() as servers:
        yield servers


@pytest.mark.parametrize("verifier", [RuleVerifier(), EVERYWHERE], ids=["rule", "everywhere"])
async def test_a_model_with_itself_replaces_nothing(
    plain: Mapping[str, PlainSglang], name: str, verifier: RuleVerifier
) -> None:
    url = plain[name].url
    async with Fusion(draft=url, assistant=url, verifier=verifier) as fusion:
        results = [result async for result in fusion.map(PROMPTS, max_tokens=24)]
    assert {result.settings.contexts for result in results} == {"ids"}
    assert [result.replacements for result in results] == [0] * len(results)
    assert all(result.trace.replay() == result.text for result in results)


async def test_llama_cpp_drafts_and_sglang_assists(
    plain: Mapping[str, PlainSglang], llama_cpp: Pair, name: str
) -> None:
    """One model on both: the fingerprint of the vocabulary says that ids pass between them."""
    urls = [str(getattr(llama_cpp, name)), plain[name].url]
    async with Fusion(draft=urls[0], assistant=urls[1], verifier=EVERYWHERE) as fusion:
        results = [result async for result in fusion.map(PROMPTS, max_tokens=24)]
    assert {result.settings.contexts for result in results} == {"ids"}
    assert [result.replacements for result in results] == [0] * len(results)


async def test_drafts_by_ids_are_the_models_own_tokens(plain: Mapping[str, PlainSglang], name: str) -> None:
    """Parts of characters are tokens, and every place of the draft gives the draft's own id."""
    async with connect(plain[name].url) as provider:
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


@pytest.mark.parametrize("text", each_way.TEXTS)
async def test_a_place_has_one_answer(plain: Mapping[str, PlainSglang], name: str, text: str) -> None:
    def connected(way: Strategy) -> Provider:
        return connect(plain[name].url, engine="sglang", strategy=way)

    each_way.check(await each_way.answers(connected, PROMPTS[0], text))
