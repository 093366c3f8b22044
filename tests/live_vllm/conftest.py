"""Tests against real vLLM servers: `make test-vllm` runs them, `make test` does not collect them.

A skipped test says nothing, and these are run to hear from vLLM: in this folder a skip is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cosd_api.apps.demo.servers import Pair
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from vllm_cpu.servers import START_SECONDS, pair

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
ENVIRONMENT = os.environ.get("COSD_VLLM_ENV")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The servers start within the time of the first test that asks them."""
    mark_live(items, __file__, START_SECONDS + 120)


@pytest.fixture(scope="session")
def vllm_pair() -> Iterator[Pair]:
    """Two bundled models on real vLLM servers: URLs by name, and as `vllm_pair.sums` and `vllm_pair.facts`."""
    if not ENVIRONMENT:
        pytest.fail("these tests need COSD_VLLM_ENV, the folder that vLLM is installed in: run `make test-vllm`")
    with pair(Path(ENVIRONMENT)) as servers:
        yield servers


@pytest.fixture(params=["sums", "facts"])
def vllm_name(request: pytest.FixtureRequest) -> str:
    """Each of the two models: the one whose prompts begin with nothing, and the one whose prompts begin with `<s>`."""
    return str(request.param)
