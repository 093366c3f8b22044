"""vLLM's adapter does what every adapter has to do, against the real server, by each of its strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from cosd_api.apps.demo.servers import Pair
from cosd_providers.engines.vllm import Vllm
from naive.plain_http import PlainVllm
from support.conformance import Conformance, Subject


@pytest.fixture(scope="module")
def plain(vllm_pair: Pair) -> Mapping[str, PlainVllm]:
    """The servers, asked directly."""
    return {name: PlainVllm(url) for name, url in vllm_pair.items()}


class TestVllm(Conformance):
    @pytest.fixture(params=["list", "singles", "echo"])
    def given(self, plain: Mapping[str, PlainVllm], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return lambda name: Subject(partial(Vllm, plain[name].url, strategy=request.param), plain[name])
