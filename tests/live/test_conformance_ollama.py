"""Ollama's adapter does what every adapter has to do, over HTTP: against a stand-in for Ollama in front of real models.

The stand-in does what the server's source says; no Ollama was run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from conformance import Conformance, Subject
from cosd_providers.ollama import Ollama
from plain import PlainLlamaCpp, Raw
from stand_in_ollama import StandInOllama
from stand_in_tgi import LlamaModel

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


class BehindOllama(PlainLlamaCpp):
    """The model behind a stand-in, asked directly; what Ollama does not show is left out."""

    def __init__(self, model_url: str, url: str, server: StandInOllama) -> None:
        super().__init__(model_url)
        self.server, self.context, self.name = server, server.context, server.names[0]
        self.url = url
        self._left = 0

    def after(self, text: str, count: int) -> list[Raw]:
        return [replace(raw, prob=None) if raw.end else raw for raw in super().after(text, count)]

    def before(self, prompt: str) -> int:
        self._left = len(self.server.gone)
        return 0

    def busy(self) -> bool:
        return len(self.server.gone) == self._left

    def written(self) -> int:
        return self.server.gone[-1]


@pytest.fixture(scope="module")
def models(trio: Mapping[str, str]) -> Iterator[Mapping[str, LlamaModel]]:
    """The models, by name; each is asked for a distribution once."""
    with httpx.Client(timeout=60) as client:
        yield {name: LlamaModel(url, client) for name, url in trio.items()}


@pytest.fixture(scope="module", params=["llama-server", "engine"])
def plain(models: Mapping[str, LlamaModel], request: pytest.FixtureRequest) -> Iterator[Mapping[str, BehindOllama]]:
    """The models behind Ollama, by name; run by either of its engines."""
    with ExitStack() as stack:
        found = {}
        for name, model in models.items():
            server = StandInOllama(model, (f"{name}:latest",), 512, model.beginning, runner=request.param)
            found[name] = BehindOllama(model.url, stack.enter_context(server.serve()), server)
        yield found


def _error(status: int, message: str) -> object:
    return {"error": message}


class TestOllama(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, BehindOllama]) -> Callable[[str], Subject]:
        def given(name: str) -> Subject:
            parts: Any = plain[name].server.runner == "engine"
            return Subject(partial(Ollama, plain[name].url), plain[name], parts=parts, error=_error)

        return given
