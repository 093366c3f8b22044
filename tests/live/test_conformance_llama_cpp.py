"""llama.cpp's adapter does what every adapter has to do, against the real server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from conformance import Conformance, Subject
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
