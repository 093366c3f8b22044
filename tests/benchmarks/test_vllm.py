"""What the benchmark compares on vLLM, without vLLM: `make bench` has it where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import vllm
from benchmarks.methods import METHODS
from benchmarks.report import Options


async def test_without_vllm_the_section_says_that_it_was_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COSD_VLLM_ENV", str(tmp_path / "nothing"))
    assert vllm.environment() is None
    (table,) = await vllm.run(Options())
    assert "Left out" in table.markdown()


def test_rounds_are_verified_by_echo_once_and_by_a_list_once() -> None:
    names = [*vllm.ways("http://127.0.0.1:1", "http://127.0.0.1:2")]
    assert {f"b: K={k}, {way}" for k in (8, 16, 32) for way in ("echo", "list")} < set(names)
    assert "c: one by one" in names
    assert "a: cosd-api" in names
    assert not {method.name for method in METHODS if (method.length or 0) > 1} & set(names)
