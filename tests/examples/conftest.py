"""The servers of the scripts' tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from cosd_api.apps.demo.servers import Pair
from fakes.tgi import LlamaModel
from support.scripts import on_loopback


@pytest.fixture(scope="session")
def nothing_there() -> Iterator[str]:
    """A web server that serves no model."""
    with on_loopback(lambda _: httpx.Response(404, json={"detail": "Not Found"})) as url:
        yield url


@pytest.fixture(scope="session")
def behind(pair: Pair) -> Iterator[dict[str, LlamaModel]]:
    """Two bundled models, as stand-ins take them."""
    with httpx.Client(timeout=60) as client:
        yield {name: LlamaModel(url, client) for name, url in pair.items()}
