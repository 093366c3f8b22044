"""TGI's adapter does what every adapter has to do, over HTTP: against a stand-in for TGI in front of real models.

TGI itself runs on accelerators only. The stand-in checks every request and answer against TGI's published document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

import stand_in_tgi
from conformance import Conformance, Proposals, Subject
from cosd_providers.tgi import Tgi
from plain import PlainLlamaCpp, Raw
from stand_in_tgi import LlamaModel, StandInTgi

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


class BehindTgi(PlainLlamaCpp):
    """The model behind a stand-in, asked directly; what TGI does not show is left out."""

    def __init__(self, model_url: str, url: str, server: StandInTgi) -> None:
        super().__init__(model_url)
        self.server, self.context = server, server.max_total
        self.url = url
        self.name = self.get("/info")["model_id"]
        self.model.url = self.model.vocabulary.url = model_url
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
def plain(trio: Mapping[str, str]) -> Iterator[Mapping[str, BehindTgi]]:
    """The models behind TGI, by name. Prompts are scored by two of the servers, as if so started."""
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=60))
        found = {}
        for name, url in trio.items():
            model = LlamaModel(url, client)
            options = {"beginning": model.beginning, "prefill": name != "facts", "template": ("Q: ", "\nA:")}
            server = StandInTgi(model, max_input=511, max_total=512, **options)  # type: ignore[arg-type]
            found[name] = BehindTgi(url, stack.enter_context(server.serve()), server)
        yield found


@pytest.fixture(autouse=True)
def nothing_breaks_the_document() -> Iterator[None]:
    """Whatever a test asks and is answered is as the document says."""
    stand_in_tgi.VIOLATIONS.clear()
    yield
    assert stand_in_tgi.VIOLATIONS == []


def _error(status: int, message: str) -> object:
    return {"error": message, "error_type": {422: "validation", 429: "overloaded"}.get(status, "generation")}


class TestTgi(Conformance):
    @pytest.fixture(params=["filter", "singles"])
    def given(self, plain: Mapping[str, BehindTgi], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        def given(name: str) -> Subject:
            strategy: Any = request.param if plain[name].server.prefill else "singles"
            return Subject(partial(Tgi, plain[name].url, strategy=strategy), plain[name], error=_error)

        return given


class TestByContinuation(Proposals):
    @pytest.fixture
    def given(self, plain: Mapping[str, BehindTgi]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Tgi, plain[name].url, strategy="continuation"), plain[name], error=_error)
