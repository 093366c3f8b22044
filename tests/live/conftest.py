"""What the tests on live servers share: the models behind them, each asked for a distribution once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import httpx
import pytest

from cosd_api.apps.demo.servers import Three
from fakes.tgi import LlamaModel
from naive import over_http as naive
from naive.plain_http import PlainLlamaCpp


@pytest.fixture(scope="session")
def plainly(trio: Mapping[str, str]) -> Mapping[str, PlainLlamaCpp]:
    """The servers, asked directly: what tests expect. What they said is remembered, for all modules."""
    return {name: PlainLlamaCpp(url) for name, url in trio.items()}


@pytest.fixture(scope="session")
def models(trio: Mapping[str, str]) -> Iterator[Mapping[str, LlamaModel]]:
    """The same, as stand-ins take them; nothing is shared with `plainly`."""
    with httpx.Client(timeout=60) as client:
        yield {name: LlamaModel(url, client) for name, url in trio.items()}


@pytest.fixture(scope="session")
def naively(three: Three) -> Iterator[Mapping[str, naive.HttpModel]]:
    """All bundled models as the naive transcriptions see them; what one test asked is remembered for the next."""
    with httpx.Client(timeout=60) as client:
        yield {name: naive.HttpModel(url, client) for name, url in three.items()}
