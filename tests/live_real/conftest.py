"""Tests on a real language model: `make test-real` runs them, `make test` does not collect them.

A skipped test says nothing, and these are run to hear from the model: in this folder a skip is a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cosd_api.apps.demo.servers import serve
from live_real.alone import Alone, Answers
from smollm2.install import MODEL, SHORTER
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks

#: Read here: no test sees a COSD_ variable (see tests/conftest.py).
FOLDER = os.environ.get("COSD_REAL_MODEL")
GEMMA = os.environ.get("COSD_GEMMA_FILE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One test asks forty prompts."""
    mark_live(items, __file__, 1200)


def _served(name: str) -> Iterator[str]:
    if not FOLDER:
        pytest.fail("these tests need COSD_REAL_MODEL, the folder of the model: run `make test-real`")
    with serve(Path(FOLDER) / name, context=2048, slots=4) as server:
        yield server.url


def served_gemma(*, swa_full: bool) -> Iterator[str]:
    """Gemma 3 270M, a model with another tokenizer and a sliding window."""
    if not GEMMA:
        words = "Gemma 3 270M could not be fetched (see above): nothing is said about a model of another family"
        sys.stderr.write(f"\n{words}\n")
        pytest.xfail(words)
    with serve(Path(GEMMA), context=1024, slots=4, swa_full=swa_full) as server:
        yield server.url


@pytest.fixture
def gemma() -> Iterator[str]:
    """Gemma 3 270M with `--swa-full`, fresh."""
    yield from served_gemma(swa_full=True)


@pytest.fixture
def draft() -> Iterator[str]:
    """The model on a server of its own, which has read nothing yet.

    The numbers in a server's cache depend on how many tokens were read at a time (see `lead_over`): what one test made
    it read at once would change the answers of the next.
    """
    yield from _served(MODEL)


@pytest.fixture
def assistant() -> Iterator[str]:
    """The same model on another server, as fresh."""
    yield from _served(MODEL)


@pytest.fixture
def shorter() -> Iterator[str]:
    """The model without one of its layers, on a fresh server."""
    yield from _served(SHORTER)


@pytest.fixture(scope="session")
def own_server() -> Iterator[str]:
    """The model on a server that answers alone, and is asked nothing else."""
    yield from _served(MODEL)


@pytest.fixture(scope="session")
def alone(own_server: str) -> dict[str, Alone]:
    """The answers of the server itself."""
    return Answers(own_server)
