"""The OpenAI-compatible adapter does what every adapter has to do, against vLLM's `/v1`, scored prompts included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from cosd_api.apps.demo.servers import Pair
from cosd_providers.engines import OpenAICompatible
from naive.plain_http import MODELS, PlainVllm
from support.conformance import Conformance, Subject

pytestmark = pytest.mark.extended  # what is vLLM's alone is in test_openai_compatible.py


@pytest.fixture(scope="module")
def plain(vllm_pair: Pair) -> Mapping[str, PlainVllm]:
    """The servers, asked directly."""
    return {name: PlainVllm(url) for name, url in vllm_pair.items()}


def subject(plain: Mapping[str, PlainVllm], strategy: str) -> Callable[[str], Subject]:
    def given(name: str) -> Subject:
        options: Any = {"dialect": "vllm", "strategy": strategy, "tokenizer": MODELS / name}
        return Subject(partial(OpenAICompatible, plain[name].url, **options), plain[name])

    return given


class TestOpenAICompatible(Conformance):
    @pytest.fixture(params=["list", pytest.param("echo", marks=pytest.mark.extended)])
    def given(self, plain: Mapping[str, PlainVllm], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return subject(plain, request.param)
