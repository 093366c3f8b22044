"""The same 50 mixed questions over llama.cpp and vLLM, in all pairs: equal texts, but for the closest of calls.

And a place of an answer has one answer on vLLM, whether it is asked about singly, in a list, by a score or by a stream.

Both engines compute these models in another order, llama.cpp from weights of 16 bits and vLLM in 32. What is found
is printed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cosd_api import FusionResult
from cosd_api.apps.demo.servers import Pair, Three
from cosd_providers import Provider, connect
from cosd_providers.strategies import Strategy
from support import each_way
from support.same_answers import MAY_DIFFER, QUESTIONS, compared, fused


@pytest.fixture(scope="module")
def urls(pair: Pair, vllm_pair: Pair) -> Mapping[str, Mapping[str, str]]:
    """From an engine and a model to a server."""
    return {"llama.cpp": pair, "vLLM": vllm_pair}


@pytest.fixture(scope="module", params=[("sums", "facts"), ("facts", "sums")], ids="-".join)
def direction(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which model drafts, and which is asked."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
async def expected(direction: tuple[str, str], pair: Pair) -> list[FusionResult]:
    """The answers over llama.cpp alone."""
    return await fused(pair[direction[0]], pair[direction[1]])


ENGINES = [
    pytest.param(("vLLM", "llama.cpp"), id="vLLM + llama.cpp", marks=pytest.mark.extended),
    pytest.param(("llama.cpp", "vLLM"), id="llama.cpp + vLLM", marks=pytest.mark.extended),
    pytest.param(("vLLM", "vLLM"), id="vLLM + vLLM"),
]


@pytest.mark.parametrize("engines", ENGINES)
async def test_fifty_questions(
    urls: Mapping[str, Mapping[str, str]],
    expected: list[FusionResult],
    direction: tuple[str, str],
    engines: tuple[str, str],
) -> None:
    (draft, assistant), (drafting, asked) = direction, engines
    found = await fused(urls[drafting][draft], urls[asked][assistant])
    assert {result.draft.engine for result in found} == {drafting.lower()}
    assert {result.assistants[0].engine for result in found} == {asked.lower()}
    differences = compared(f"{draft} on {drafting}, asking {assistant} on {asked}", found, expected)
    assert len(differences) <= MAY_DIFFER, "\n".join(map(str, differences))
    assert sum(result.replacements or 0 for result in found) > 0


@pytest.mark.parametrize("text", each_way.TEXTS)
async def test_a_place_has_one_answer(vllm_pair: Pair, vllm_name: str, text: str) -> None:
    def connected(way: Strategy) -> Provider:
        return connect(vllm_pair[vllm_name], engine="vllm", strategy=way)

    each_way.check(await each_way.answers(connected, QUESTIONS[0], text))


@pytest.mark.parametrize("names", [("sums", "facts"), ("facts", "sums")], ids="-".join)
async def test_each_way_to_ask_of_other_ids_gives_one_answer(vllm_pair: Pair, names: tuple[str, str]) -> None:
    found = await each_way.fused(vllm_pair[names[0]], vllm_pair[names[1]], "vllm", QUESTIONS[:3])
    each_way.check_fused(found)
    assert {result.settings.unit for results in found.values() for result in results} == {"word"}
    assert sum(result.replacements or 0 for result in found["watch"]) >= 3


async def test_each_way_to_ask_of_the_same_ids_gives_one_answer(three: Three, vllm_pair: Pair) -> None:
    found = await each_way.fused(three.words, vllm_pair.sums, "vllm", QUESTIONS[:3])
    each_way.check_fused(found)
    assert {result.settings.unit for results in found.values() for result in results} == {"token"}
    assert sum(result.replacements or 0 for result in found["watch"]) >= 3


async def test_an_average_has_one_text_however_it_is_asked(three: Three, vllm_pair: Pair) -> None:
    each_way.check_segments(await each_way.fused(three.words, vllm_pair.sums, "vllm", QUESTIONS[:2], method="average"))
