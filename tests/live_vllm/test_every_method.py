"""Every method over vLLM, by its own adapter and by the one for OpenAI's protocol: the texts of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from cosd_api.apps.demo.servers import Pair
from cosd_providers import Provider, connect
from support.every_method import EveryMethod


class TestVllm(EveryMethod):
    """Token ids, lists and scores: nothing is refused."""

    engine = "vLLM"
    stated = ("vLLM", "")
    count = 2

    @pytest.fixture
    def found(self, vllm_pair: Pair) -> Callable[[str], Provider]:
        return lambda name: connect(vllm_pair[name], engine="vllm")


class TestCompletions(EveryMethod):
    """`/v1/completions`, which scores a text by `echo`."""

    engine = "vLLM's /v1/completions"
    stated = ("OpenAI-compatible", "`/v1` of vLLM")
    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(("safe", "safe of three"), "does not encode text")
    count = 1

    @pytest.fixture
    def found(self, vllm_pair: Pair) -> Callable[[str], Provider]:
        return lambda name: connect(vllm_pair[name], engine="openai", dialect="vllm")
