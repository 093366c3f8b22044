"""llama.cpp's adapter does what every adapter has to do, against the real server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from conformance import Conformance, Proposals, Subject
from cosd_providers.llama_cpp import LlamaCpp
from plain import PlainLlamaCpp

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def plain(trio: Mapping[str, str]) -> Mapping[str, PlainLlamaCpp]:
    """The three servers, asked directly."""
    return {name: PlainLlamaCpp(url) for name, url in trio.items()}


class TestLlamaCpp(Conformance):
    @pytest.fixture
    def given(self, plain: Mapping[str, PlainLlamaCpp]) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(LlamaCpp, plain[name].url), plain[name])


class TestByStrategy(Proposals):
    @pytest.fixture(params=["singles", "continuation"])
    def given(self, plain: Mapping[str, PlainLlamaCpp], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(LlamaCpp, plain[name].url, strategy=request.param), plain[name])
