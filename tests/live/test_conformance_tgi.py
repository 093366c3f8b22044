"""TGI's adapter does what every adapter has to do, over HTTP: against a stand-in for TGI in front of real models.

TGI itself runs on accelerators only. The stand-in checks every request and answer against TGI's published document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import pytest

from cosd_providers.engines.tgi import Tgi
from fakes import tgi as stand_in_tgi
from fakes.tgi import LlamaModel, StandInTgi
from naive.plain_http import Behind, PlainLlamaCpp
from support.conformance import Conformance, Subject

pytestmark = [pytest.mark.extended, pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plain(models: Mapping[str, LlamaModel], plainly: Mapping[str, PlainLlamaCpp]) -> Iterator[Mapping[str, Behind]]:
    """The models behind TGI, by name. Prompts are scored by two of the servers, as if so started."""
    with ExitStack() as stack:
        found = {}
        for name, model in models.items():
            options = {"beginning": model.beginning, "prefill": name != "facts", "template": ("Q: ", "\nA:")}
            server = StandInTgi(model, max_input=511, max_total=512, **options)  # type: ignore[arg-type]
            url = stack.enter_context(server.serve())
            found[name] = Behind(plainly[name], url, server, "toys/toy", 512)
        yield found


@pytest.fixture(autouse=True)
def nothing_breaks_the_document() -> Iterator[None]:
    """Whatever a test asks and is answered is as the document says."""
    stand_in_tgi.VIOLATIONS.clear()
    yield
    assert stand_in_tgi.VIOLATIONS == []


def _error(status: int, message: str) -> object:
    return {"error": message, "error_type": {422: "validation", 429: "overloaded"}.get(status, "generation")}


def subject(plain: Behind) -> Subject:
    return Subject(partial(Tgi, plain.url), plain, error=_error)


class TestTgi(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, Behind]) -> Callable[[str], Subject]:
        return lambda name: subject(plain[name])
