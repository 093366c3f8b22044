"""Hooks for folders whose tests are run to hear from one kind of server: a skipped test says nothing, so it fails."""

from __future__ import annotations

from collections.abc import Generator

import pytest

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]


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
