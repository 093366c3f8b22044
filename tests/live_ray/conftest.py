"""Tests on a local Ray cluster of two nodes: `make test-ray` runs them, nothing else collects them.

In this folder a skip is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ray_cluster.running import HERE, TwoNodes, python
from support.no_skips import mark_live, pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401 - hooks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster that takes its time, over live servers."""
    mark_live(items, __file__, 300)


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """The cluster."""
    folder = tmp_path_factory.mktemp("nodes")
    with python(str(HERE / "nodes.py"), folder=folder) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (folder / "stderr.txt").read_text()
        yield TwoNodes(address, process)
        process.communicate()  # closes its input, with which it ends
