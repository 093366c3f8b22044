"""Tests against TGI's real model server: `make test-tgi` runs them, nothing else collects them.

In this folder a skip is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from naive.plain_http import PlainTgi
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from support.served import START_SECONDS
from tgi_cpu.servers import serve

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
PLACES = [os.environ.get(name) for name in ("COSD_TGI_ENV", "COSD_TGI_SOURCE")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The servers start within the time of the first test that asks them."""
    mark_live(items, __file__, START_SECONDS + 300)


@pytest.fixture(scope="session")
def places() -> tuple[Path, Path]:
    """The environment with TGI's requirements, and the checkout of its source."""
    environment, source = PLACES
    if not (environment and source):
        pytest.fail("these tests need COSD_TGI_ENV and COSD_TGI_SOURCE, a checkout of TGI: run `make test-tgi`")
    return Path(environment), Path(source)


@pytest.fixture(scope="session")
def plain(places: tuple[Path, Path]) -> Iterator[Mapping[str, PlainTgi]]:
    """The three small models on TGI, asked directly."""
    with serve(*places, ["sums", "facts", "reciter"]) as servers:
        yield {name: PlainTgi(server.url) for name, server in servers.items()}
