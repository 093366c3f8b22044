"""For folders whose tests are run to hear from one kind of server: a skipped test says nothing, so it fails."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest


def mark_live(items: list[pytest.Item], conftest: str, seconds: float) -> None:
    """Mark the tests of a conftest's folder as live, and give each so many seconds."""
    folder = Path(conftest).parent
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.live)
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    report.outcome = "failed"
    report.longrepr = f"a skip is a failure here: {reason}"
