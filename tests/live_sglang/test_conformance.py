"""SGLang's adapter does what every adapter has to do, against the real server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from cosd_providers import probe
from cosd_providers.engines.sglang import Sglang
from naive.plain_http import PlainSglang
from support.conformance import Conformance, Proposals, Subject


class TestSglang(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, PlainSglang]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Sglang, plain[name].url), plain[name])


class TestByStrategy(Proposals):
    @pytest.fixture(params=["echo", "list", "singles"])
    def given(self, plain: Mapping[str, PlainSglang], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Sglang, plain[name].url, strategy=request.param), plain[name])


async def test_what_the_probe_reports(plain: Mapping[str, PlainSglang]) -> None:
    report = await probe(plain["facts"].url)
    assert (report.engine, report.can_draft, report.can_assist) == ("sglang", True, True)
    assert set(report.strategies) == {"echo", "list", "singles"}
