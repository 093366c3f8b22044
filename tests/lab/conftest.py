"""What tests of the laboratory share."""

from __future__ import annotations

import pytest

from benchmarks.lab import analysis


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take few draws for each interval, where a test is not about intervals."""
    monkeypatch.setattr(analysis, "_DRAWS", 60)
