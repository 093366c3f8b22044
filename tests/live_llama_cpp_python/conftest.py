"""Tests against real llama-cpp-python servers: `make test-llama-cpp-python` runs them, nothing else collects them.

In this folder a skip is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from llama_cpp_python.servers import serve
from naive.plain_http import PlainLlamaCppPython, get
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks
from support.served import START_SECONDS, Served

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
ENVIRONMENT = os.environ.get("COSD_LLAMA_CPP_PYTHON_ENV")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The servers start within the time of the first test that asks them."""
    mark_live(items, __file__, START_SECONDS + 120)


@pytest.fixture(scope="session")
def served(trio: Mapping[str, str]) -> Iterator[Mapping[str, Served]]:
    """The three small models, with the contexts that llama.cpp's own server gives them."""
    if not ENVIRONMENT:
        pytest.fail("these tests need COSD_LLAMA_CPP_PYTHON_ENV: run `make test-llama-cpp-python`")
    contexts = {name: get(f"{url}/props")["default_generation_settings"]["n_ctx"] for name, url in trio.items()}
    with serve(Path(ENVIRONMENT), contexts) as servers:
        yield servers


@pytest.fixture(scope="session")
def plain(served: Mapping[str, Served], trio: Mapping[str, str]) -> Mapping[str, PlainLlamaCppPython]:
    """The servers, each with llama.cpp's own for the same model, which is asked plainly in its place."""
    return {name: PlainLlamaCppPython(server.url, trio[name]) for name, server in served.items()}
