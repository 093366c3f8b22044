"""The gateway under attack, in the short form of `make bench ARGS=attack`."""

from __future__ import annotations

import pytest

from benchmarks.attack import run
from benchmarks.report import Options

pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.timeout(400)]


async def test_nothing_is_lost_wrong_or_leaked() -> None:
    tables = await run(Options(quick=True))
    shown = "\n\n".join(table.markdown() for table in tables)
    assert not [failure for table in tables for failure in table.figures["failures"]], shown
