"""The TGI adapter over HTTP: a stand-in for TGI in front of the two real models of the demonstration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from cosd_api import Fusion
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Question, Usage
from cosd_providers.contract import Context
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.engines.tgi import Tgi
from fakes import tgi as stand_in_tgi
from fakes.tgi import LlamaModel, StandInTgi
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PROMPTS = [question.prompt for question in sample("mixed", 10, seed=31)]
MAX_TOKENS = 48


@pytest.fixture(scope="module")
def stand_ins(pair: Pair, models: Mapping[str, LlamaModel]) -> Iterator[dict[str, tuple[str, StandInTgi]]]:
    """Both models behind TGI: URL and server by the model's name. The one that adds was started with prefill."""
    with ExitStack() as stack:
        found = {}
        for name in pair:
            model = models[name]
            server = StandInTgi(model, beginning=model.beginning, max_input=500, max_total=512, prefill=name == "sums")
            found[name] = (stack.enter_context(server.serve()), server)
        yield found


@pytest.fixture(autouse=True)
def nothing_breaks_the_document() -> Iterator[None]:
    """Whatever a test asks and is answered is as the document says."""
    stand_in_tgi.VIOLATIONS.clear()
    yield
    assert stand_in_tgi.VIOLATIONS == []


@pytest.mark.parametrize("count", partly([5, 10]))
@pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]))
async def test_the_same_texts_as_over_llama_cpp(
    pair: Pair, stand_ins: dict[str, tuple[str, StandInTgi]], direction: tuple[str, str], count: int
) -> None:
    texts = []
    for draft, assistant in (
        (pair[direction[0]], pair[direction[1]]),
        (Tgi(stand_ins[direction[0]][0]), Tgi(stand_ins[direction[1]][0])),
    ):
        async with Fusion(draft=draft, assistant=assistant) as fusion:
            results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=MAX_TOKENS)]
        texts.append([(result.text, result.finish_reason) for result in results])
        assert sum(result.assistant_requests for result in results) > 0
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", partly(["sums", "facts"]))
async def test_drafts_and_proposals_are_those_of_the_model(
    pair: Pair, stand_ins: dict[str, tuple[str, StandInTgi]], name: str
) -> None:
    text = " The capital of Peru is Brasília 😀 and the total is 42.\n".encode()
    questions = [Question(at, (text[at : at + 4],), word=True) for at in (0, 4, 12, 20, 23)]
    questions += [Question(len(text), (b"",))]
    found: list[Any] = []
    async with Tgi(stand_ins[name][0]) as ours, LlamaCpp(pair[name]) as theirs:
        for provider in (ours, theirs):
            *tokens, end = [
                one async for one in provider.generate(Context(PROMPTS[0], b""), max_tokens=40, usage=Usage())
            ]
            proposals = await provider.propose(Context(PROMPTS[0], text), questions, usage=Usage())
            said: list[Any] = [*tokens, *(token for one in proposals if one for token in one.tokens)]
            probs = [token.prob for token in said if not token.end]
            found.append((end, [token.data for token in said], probs))
    assert (found[0][0].reason, found[0][1]) == (found[1][0].reason, found[1][1])
    # llama.cpp's numbers depend on how many tokens it reads at a time, and so on what its slots have read before.
    assert found[0][2] == pytest.approx(found[1][2], abs=5e-3)


async def test_scores_are_those_of_the_model(pair: Pair, stand_ins: dict[str, tuple[str, StandInTgi]]) -> None:
    text = " The capital is Zürich 😀.".encode()
    async with Tgi(stand_ins["sums"][0]) as ours, LlamaCpp(pair["sums"]) as theirs:
        scored = await ours.score(Context(PROMPTS[0], text), usage=Usage())
        expected = await theirs.score(Context(PROMPTS[0], text), usage=Usage())
    assert [token.data for token in scored] == [token.data for token in expected]
    assert [token.prob for token in scored] == pytest.approx([token.prob for token in expected], rel=2e-2, abs=1e-6)


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_cancelling_is_seen_by_the_server(stand_ins: dict[str, tuple[str, StandInTgi]], how: str) -> None:
    url, server = stand_ins["facts"]
    server.pace = 60.0  # so that the server is at its second event when the client leaves, however busy both are
    before = len(server.gone)
    try:
        async with Tgi(url) as provider:
            usage = Usage()
            endless: Any = provider.generate(Context("Q: What", b""), max_tokens=400, usage=usage)
            if how == "close":
                await anext(endless)
                await endless.aclose()
            else:
                with anyio.CancelScope() as scope:
                    async for _ in endless:
                        scope.cancel()
            with anyio.fail_after(20):
                while len(server.gone) == before:  # noqa: ASYNC110
                    await anyio.sleep(0.002)
    finally:
        server.pace = 0.0
    assert server.gone[-1] == usage.completion_tokens == 1
    assert usage.prompt_tokens > 1
