"""Fixtures of the laboratory's tests."""

from __future__ import annotations

import pytest

from benchmarks.lab import analysis, plan


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take few draws for each interval, and read no code of the library, where a test is not about these."""
    monkeypatch.setattr(analysis, "DRAWS", 60)
    monkeypatch.setattr(plan, "_library", lambda: "the library")
