"""The same 50 mixed questions over llama.cpp and llama-cpp-python, in all pairs: equal texts, but for close calls.

What is found is printed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from cosd_api import FusionResult
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider
from cosd_providers.engines import OpenAICompatible
from naive.plain_http import MODELS
from support.same_answers import MAY_DIFFER, compared, fused
from support.served import Served


@pytest.fixture(scope="module", params=[("sums", "facts"), ("facts", "sums")], ids="-".join)
def direction(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which model drafts, and which is asked."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
async def expected(direction: tuple[str, str], pair: Pair) -> list[FusionResult]:
    """The answers over llama.cpp alone."""
    return await fused(pair[direction[0]], pair[direction[1]])


@pytest.mark.parametrize("strategy", [None, "singles", "echo"])
async def test_fifty_questions(
    served: Mapping[str, Served],
    pair: Pair,
    expected: list[FusionResult],
    direction: tuple[str, str],
    strategy: Any,
) -> None:
    draft, assistant = direction
    over = partial(OpenAICompatible, dialect="llama-cpp-python", strategy=strategy, tokenizer=MODELS / assistant)
    asked: Provider = over(served[assistant].url)
    found = await fused(pair[draft], asked)
    assert {result.assistants[0].engine for result in found} == {"llama-cpp-python"}
    name = f"{draft} on llama.cpp, asking {assistant} on llama-cpp-python by {strategy or 'its own rule'}"
    differences = compared(name, found, expected)
    assert len(differences) <= MAY_DIFFER, "\n".join(map(str, differences))
    assert sum(result.replacements or 0 for result in found) > 0


async def test_fifty_questions_on_it_alone(
    served: Mapping[str, Served], expected: list[FusionResult], direction: tuple[str, str]
) -> None:
    """Both by their URLs: it is recognised."""
    draft, assistant = direction
    found = await fused(served[draft].url, served[assistant].url)
    assert {result.draft.engine for result in found} == {"llama-cpp-python"}
    differences = compared(f"{draft} and {assistant} on llama-cpp-python", found, expected)
    assert len(differences) <= MAY_DIFFER, "\n".join(map(str, differences))
