"""SGLang's adapter does what every adapter has to do, over HTTP: against a stand-in for SGLang in front of real models.

What the stand-in does was read in SGLang's source. `make test-sglang` runs the same class on real servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import pytest

from cosd_api import Fusion, RuleVerifier
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_providers import probe
from cosd_providers.engines.sglang import Sglang
from fakes.sglang import StandInSglang
from fakes.tgi import LlamaModel
from naive.plain_http import Behind, PlainLlamaCpp
from support.conformance import Conformance, Proposals, Subject

pytestmark = [pytest.mark.extended, pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plain(models: Mapping[str, LlamaModel], plainly: Mapping[str, PlainLlamaCpp]) -> Iterator[Mapping[str, Behind]]:
    """The models behind SGLang, by name; one of them streams what is new alone."""
    with ExitStack() as stack:
        found = {}
        for name, model in models.items():
            server = StandInSglang(model, context=512, beginning=model.beginning, incremental=name == "facts")
            found[name] = Behind(plainly[name], stack.enter_context(server.serve()), server, "toy", 512)
        yield found


class TestSglang(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, Behind]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Sglang, plain[name].url), plain[name])


class TestByStrategy(Proposals):
    @pytest.fixture(params=["echo", "list", "singles"])
    def given(self, plain: Mapping[str, Behind], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Sglang, plain[name].url, strategy=request.param), plain[name])


async def test_what_the_probe_says(plain: Mapping[str, Behind]) -> None:
    report = await probe(plain["facts"].url)
    assert (report.engine, report.version, report.can_draft, report.can_assist) == ("sglang", "0.5.6", True, True)
    assert set(report.strategies) == {"echo", "list", "singles"}
    assert str(report["scoring"].value).startswith("logprob_start_len")


@pytest.mark.parametrize("direction", [("sums", "facts"), ("facts", "sums")])
async def test_equation_3_as_printed(pair: Pair, plain: Mapping[str, Behind], direction: tuple[str, str]) -> None:
    """A server that takes ids is sent text for it, and writes what llama.cpp's does (`test_exactness`)."""
    prompts = [question.prompt for question in sample("mixed", 3, seed=11)]
    found = []
    for urls in ([plain[name].url for name in direction], [pair[name] for name in direction]):
        async with Fusion(draft=urls[0], assistant=urls[1], verifier=RuleVerifier.paper(), unit="literal") as fusion:
            found.append([result async for result in fusion.map(prompts, max_tokens=30)])
    assert {result.settings.contexts for several in found for result in several} == {"text"}
    assert [result.text for result in found[0]] == [result.text for result in found[1]]
    assert sum(result.replacements or 0 for result in found[0])
