"""Tests against real SGLang servers: `make test-sglang` runs them, nothing else collects them.

In this folder a skip is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from naive.plain_http import PlainSglang
from sglang_cpu.servers import START_SECONDS, serve
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
ENVIRONMENT = os.environ.get("COSD_SGLANG_ENV")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The servers start within the time of the first test that asks them."""
    mark_live(items, __file__, START_SECONDS + 300)


@pytest.fixture(scope="session")
def plain() -> Iterator[Mapping[str, PlainSglang]]:
    """The three small models on real SGLang servers, asked directly."""
    if not ENVIRONMENT:
        pytest.fail("these tests need COSD_SGLANG_ENV, the folder that SGLang is installed in: run `make test-sglang`")
    with serve(Path(ENVIRONMENT), ["sums", "facts", "reciter"]) as servers:
        yield {name: PlainSglang(server.url) for name, server in servers.items()}
