"""Conversations with the two real chat models over other ways than llama.cpp's own: the same texts.

Behind stand-ins for TGI, SGLang and Ollama; and by OpenAI's two routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from cosd_api import Fusion, Message, connect
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider
from fakes import tgi as stand_in_tgi
from fakes.chats import Template, chatml, mistral
from fakes.ollama import StandInOllama
from fakes.sglang import StandInSglang
from fakes.tgi import LlamaModel, StandInTgi
from support.drawn import partly

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

MODELS = Path(__file__).parents[1] / "models"
TEMPLATES: Mapping[str, Template] = {"sums": chatml, "facts": mistral}
ASKED = [
    [Message("system", "Be brief."), Message("user", question.prompt.removeprefix("Q: ").removesuffix("\nA:"))]
    for question in sample("mixed", 3, seed=31)
]


@pytest.fixture(scope="module")
def texts(pair: Pair) -> Callable[[Any, Any], Any]:
    """What two providers answer together, by whom was asked."""

    async def answers(draft: Any, assistant: Any) -> list[Any]:
        async with Fusion(draft=draft, assistant=assistant) as fusion:
            results = [result async for result in fusion.map(ASKED, max_tokens=48)]
        assert all(result.finish_reason == "stop" for result in results)
        return [result.text for result in results]

    return answers


@pytest.fixture(scope="module", params=["tgi", "sglang", "ollama"])
def behind(
    request: pytest.FixtureRequest, pair: Pair, models: Mapping[str, LlamaModel]
) -> Iterator[Callable[[str], Provider]]:
    """Makes an adapter for one of the two models behind the engine."""
    stand_in_tgi.VIOLATIONS.clear()
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        for name in pair:
            model, template = models[name], TEMPLATES[name]
            begins: Any = {"beginning": model.beginning, "specials": model.specials, "template": template}
            server: Any = StandInOllama(model, (f"{name}:latest",), 512, model.beginning)
            if request.param == "tgi":
                server = StandInTgi(model, max_input=500, max_total=512, **begins)
            elif request.param == "sglang":
                server = StandInSglang(model, context=512, **begins)
            urls[name] = stack.enter_context(server.serve())

        def provider(name: str) -> Provider:
            own = MODELS / name if request.param == "ollama" else None
            return connect(urls[name], engine=request.param, chat_template=own)

        yield provider
    assert stand_in_tgi.VIOLATIONS == []


@pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]))
async def test_a_conversation_is_fused_the_same_as_over_llama_cpp(
    pair: Pair,
    behind: Callable[[str], Provider],
    texts: Callable[[Any, Any], Any],
    direction: tuple[str, str],
) -> None:
    draft, assistant = direction
    expected = await texts(pair[draft], pair[assistant])
    assert await texts(behind(draft), behind(assistant)) == expected


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]))
async def test_the_same_by_the_routes_of_openai(
    pair: Pair, texts: Callable[[Any, Any], Any], direction: tuple[str, str], api: Literal["completions", "chat"]
) -> None:
    def provider(name: str) -> Provider:
        own = MODELS / name if api == "completions" else None
        return connect(pair[name], engine="openai", dialect="llama.cpp", api=api, chat_template=own)

    draft, assistant = direction
    assert await texts(provider(draft), provider(assistant)) == await texts(pair[draft], pair[assistant])
