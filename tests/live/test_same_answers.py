"""The same mixed questions over llama.cpp, TGI's stand-in and OpenAI's protocol: equal texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from cosd_api import FusionResult
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider, connect
from fakes import tgi as stand_in_tgi
from fakes.tgi import LlamaModel, StandInTgi
from support.drawn import partly
from support.same_answers import compared, fused

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

DIRECTIONS = pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]), ids="-".join)


@pytest.fixture(scope="module")
def tgi(pair: Pair, models: Mapping[str, LlamaModel]) -> Iterator[dict[str, str]]:
    """Both models behind stand-ins for TGI: URLs by name."""
    stand_in_tgi.VIOLATIONS.clear()
    with ExitStack() as stack:
        servers = {name: StandInTgi(models[name], 511, 512, beginning=models[name].beginning) for name in pair}
        yield {name: stack.enter_context(server.serve()) for name, server in servers.items()}
    assert stand_in_tgi.VIOLATIONS == []


async def same(name: str, draft: str | Provider, assistant: str | Provider, expected: list[FusionResult]) -> None:
    differences = compared(name, await fused(draft, assistant, len(expected)), expected)
    assert len(differences) <= len(expected) // 8, "\n".join(map(str, differences))


@pytest.mark.extended
@DIRECTIONS
async def test_tgi(pair: Pair, tgi: dict[str, str], direction: tuple[str, str]) -> None:
    """A draft and an assistant by TGI, and either with llama.cpp; found by their URLs alone."""
    draft, assistant = direction
    expected = await fused(pair[draft], pair[assistant], 8)  # a stand-in asks its model about each token again
    assert sum(result.replacements or 0 for result in expected) > 0
    for mine, theirs in ((tgi, tgi), (tgi, pair), (pair, tgi)):
        engines = " + ".join("TGI's stand-in" if one is tgi else "llama.cpp" for one in (mine, theirs))
        await same(f"{draft} and {assistant} on {engines}", mine[draft], theirs[assistant], expected)


@pytest.mark.extended
@DIRECTIONS
async def test_openai(pair: Pair, direction: tuple[str, str]) -> None:
    """The same servers by OpenAI's routes, which take text only."""
    draft, assistant = (connect(pair[name], engine="openai", dialect="llama.cpp") for name in direction)
    expected = await fused(pair[direction[0]], pair[direction[1]], 20)
    await same(f"{' and '.join(direction)} by /v1/completions", draft, assistant, expected)
