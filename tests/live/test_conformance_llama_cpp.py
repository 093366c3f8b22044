"""llama.cpp's adapter does what every adapter has to do, against the real server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from cosd_providers.engines.llama_cpp import LlamaCpp
from naive.plain_http import PlainLlamaCpp
from support.conformance import Conformance, Proposals, Subject

pytestmark = pytest.mark.live


class TestLlamaCpp(Conformance):
    @pytest.fixture
    def given(self, plainly: Mapping[str, PlainLlamaCpp]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(LlamaCpp, plainly[name].url), plainly[name])


@pytest.mark.extended
class TestByStrategy(Proposals):
    @pytest.fixture(params=["singles"])
    def given(self, plainly: Mapping[str, PlainLlamaCpp], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(LlamaCpp, plainly[name].url, strategy=request.param), plainly[name])
