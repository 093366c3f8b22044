"""The section on cancelled streams, in a small size; its measurement is tested in tests/live and tests/live_vllm."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cancelled
from benchmarks.report import Options


@pytest.mark.live
@pytest.mark.extended
async def test_each_carrier_has_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COSD_VLLM_ENV", str(tmp_path / "nothing"))
    [table] = await cancelled.run(Options(quick=True))
    assert [row[:3] for row in table.rows] == [["llama.cpp", "aiohttp", 2], ["llama.cpp", "httpx", 2]]
    assert all(one["read"] == 16 for several in table.figures.values() for one in several)
    assert "vLLM is left out" in table.markdown()
