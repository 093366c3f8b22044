"""Every method over a bundled model with itself, on real llama.cpp servers: the model's own text, asked by ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, Method
from cosd_api.demo.servers import MODELS, serve
from cosd_api.methods.base import method_named
from cosd_providers import connect
from live.test_same_ids import PROMPTS, written_alone

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

METHODS: tuple[Method, ...] = (
    *(method_named(name) for name in ("average", "cool", "cool+rerank", "rerank", "safe", "route", "cascade")),
    *(method_named(name) for name in ("adafuse", "chared", "nudging")),
)
ITS_OWN = ("adafuse", "chared", "nudging")
"""Methods that may choose another text of the model."""
ONE_REQUEST = ("cool", "cool+rerank", "rerank", "cascade", "nudging", "route")
"""Methods that let a model write on in its only request, behind the prompt."""


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with serve(MODELS / "sums.gguf", slots=4) as server:
        yield server.url


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.chosen_name)
async def test_a_model_with_itself(model: str, method: Method) -> None:
    sent: list[Any] = []

    async def note(request: httpx.Request) -> None:
        if request.url.path == "/completion":
            sent.append(json.loads(request.content)["prompt"])

    async with httpx.AsyncClient(event_hooks={"request": [note]}, timeout=60) as client:
        models = [connect(model, http_client=client) for _ in range(2)]
        async with Fusion(draft=models[0], assistant=models[1], method=method) as fusion:
            for prompt in PROMPTS[:2]:
                result = await fusion.generate(prompt, max_tokens=24)
                assert method.chosen_name in ITS_OWN or result.text == written_alone(model, prompt)
                assert result.settings.contexts == "ids"
                assert result.trace.replay() == result.text
    texts = [text for prompt in sent for text in _texts(prompt)]
    assert {text for text in texts if text.startswith(tuple(PROMPTS))} <= {*PROMPTS}, "the answer was sent as text"
    assert method.chosen_name in ONE_REQUEST or any(isinstance(part, int) for prompt in sent for part in _flat(prompt))


def _flat(prompt: Any) -> list[Any]:
    """The parts of a prompt, or of a list of prompts."""
    return [part for one in prompt for part in _flat(one)] if isinstance(prompt, list) else [prompt]


def _texts(prompt: Any) -> list[str]:
    return [part for part in _flat(prompt) if isinstance(part, str)]
