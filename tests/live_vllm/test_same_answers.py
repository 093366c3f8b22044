"""The same 50 mixed questions over llama.cpp and vLLM, in all pairs: equal texts, but for the closest of calls.

Both engines compute these models in another order, llama.cpp from weights of 16 bits and vLLM in 32. What is found
is printed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cosd_api import FusionResult
from cosd_api.demo.servers import Pair
from same_answers import MAY_DIFFER, compared, fused


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


@pytest.mark.parametrize("engines", [("vLLM", "llama.cpp"), ("llama.cpp", "vLLM"), ("vLLM", "vLLM")], ids=" + ".join)
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
