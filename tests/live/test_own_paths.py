"""Models on real llama.cpp, each asked on its own path: every method over a model with itself, and every way to ask.

A place of an answer has one answer, whether it is asked about singly, in a list, by a score or by a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cosd_api import CoolFusion, Fusion
from cosd_api.apps.demo.servers import MODELS, Pair, Three, serve
from cosd_api.extend import Method
from cosd_api.methods.base import method_named
from cosd_providers import Provider, connect
from cosd_providers.strategies import Strategy
from live.test_same_ids import PROMPTS, written_alone
from support import each_way
from support.drawn import partly
from support.method_files import AT
from support.same_answers import QUESTIONS

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

METHODS: tuple[Method, ...] = (
    *(method_named(name) for name in ("average", "cool", "rerank", "safe", AT["route"], AT["cascade"])),
    *(method_named(name) for name in (AT["adafuse"], "chared", AT["nudging"])),
    CoolFusion(rerank=True),
)
ITS_OWN = ("adafuse", "chared", "nudging")
"""Methods that may choose another text of the model."""
ONE_REQUEST = ("cool", "rerank", "cascade", "nudging", "route")
"""Methods that let a model write on in its only request, behind the prompt."""


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with serve(MODELS / "sums.gguf", slots=4) as server:
        yield server.url


@pytest.mark.parametrize("method", METHODS, ids=repr)
async def test_a_model_with_itself(model: str, method: Method) -> None:
    sent: list[Any] = []

    async def note(request: httpx.Request) -> None:
        if request.url.path == "/completion" and b'"ignore_eos":true' not in request.content:
            sent.append(json.loads(request.content)["prompt"])

    async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=60) as client:
        models = [connect(model, http_client=client) for _ in range(2)]
        async with Fusion(draft=models[0], assistant=models[1], method=method) as fusion:
            for prompt in PROMPTS[:2]:
                result = await fusion.generate(prompt, max_tokens=24)
                assert method.name in ITS_OWN or result.text == written_alone(model, prompt)
                assert result.settings.contexts == "ids"
                assert result.trace.replay() == result.text
    texts = [text for prompt in sent for text in _texts(prompt)]
    assert {text for text in texts if text.startswith(tuple(PROMPTS))} <= {*PROMPTS}, "the answer was sent as text"
    assert method.name in ONE_REQUEST or any(isinstance(part, int) for prompt in sent for part in _flat(prompt))


def _flat(prompt: Any) -> list[Any]:
    """The parts of a prompt, or of a list of prompts."""
    return [part for one in prompt for part in _flat(one)] if isinstance(prompt, list) else [prompt]


def _texts(prompt: Any) -> list[str]:
    return [part for part in _flat(prompt) if isinstance(part, str)]


# --------------------------------------------------------------------------------------------------- every way to ask


@pytest.mark.parametrize("name", partly(["sums", "facts"]))
@pytest.mark.parametrize("text", each_way.TEXTS)
async def test_a_place_has_one_answer(pair: Pair, name: str, text: str) -> None:
    def connected(way: Strategy) -> Provider:
        return connect(pair[name], engine="llama.cpp", strategy=way)

    each_way.check(await each_way.answers(connected, PROMPTS[0], text))


@pytest.mark.parametrize("names", partly([("sums", "facts"), ("facts", "sums")]), ids="-".join)
async def test_each_way_to_ask_of_other_ids_gives_one_answer(pair: Pair, names: tuple[str, str]) -> None:
    found = await each_way.fused(pair[names[0]], pair[names[1]], "llama.cpp", QUESTIONS[:6])
    each_way.check_fused(found)
    assert {result.settings.unit for results in found.values() for result in results} == {"word"}
    assert sum(result.replacements or 0 for result in found["watch"]) >= 6
    requests = {way: sum(result.usage["assistant"].requests for result in results) for way, results in found.items()}
    assert requests["watch"] < 0.5 * requests["singles"]


async def test_an_average_has_one_text_however_it_is_asked(three: Three) -> None:
    """Its places are asked after ids as well; a watch, which shows too few tokens, is left out."""
    found = await each_way.fused(three.sums, three.words, "llama.cpp", PROMPTS[:3], method="average")
    each_way.check_segments(found)
