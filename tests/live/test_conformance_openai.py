"""The OpenAI-compatible adapter does what every adapter has to do, against llama.cpp's `/v1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cosd_providers.engines.openai import OpenAICompatible
from naive.plain_http import PlainLlamaCpp
from support.conformance import Conformance, Proposals, Subject

pytestmark = pytest.mark.live

MODELS = Path(__file__).parent.parent / "models"


def subject(plain: Mapping[str, PlainLlamaCpp], strategy: str) -> Callable[[str], Subject]:
    def given(name: str) -> Subject:
        options: Any = {"dialect": "llama.cpp", "strategy": strategy, "tokenizer": MODELS / name}
        # This route shows nothing of a token that leaves a character open, not even its probability.
        return Subject(partial(OpenAICompatible, plain[name].url, **options), plain[name], parts=False)

    return given


class TestOpenAICompatible(Conformance):
    @pytest.fixture
    def given(self, plainly: Mapping[str, PlainLlamaCpp]) -> Callable[[str], Subject]:
        return subject(plainly, "list")


@pytest.mark.extended
class TestByStrategy(Proposals):
    @pytest.fixture(params=["singles"])
    def given(self, plainly: Mapping[str, PlainLlamaCpp], request: pytest.FixtureRequest) -> Callable[[str], Subject]:
        return subject(plainly, request.param)
