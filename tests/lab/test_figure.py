"""The figures are drawn of whatever was run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab.claims import scenarios
from benchmarks.lab.figure import draw, draw_pairs
from benchmarks.lab.forgetting import beside_mean, forgetting
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.mark.extended
async def test_figures_of_few_runs_and_of_none(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    several = [await run(), await run("c-d"), await run("half"), await run("closed, reversed")]
    for at, runs in enumerate(([], several)):
        draw(scenarios(runs), tmp_path / f"{at}.svg")
        draw_pairs(scenarios(runs), tmp_path / f"{at}-pairs.svg")
    again = tmp_path / "again.svg"
    draw(scenarios(several), again)
    assert again.read_bytes() == (tmp_path / "1.svg").read_bytes()


async def test_fusing_stands_beside_the_mean_of_the_weights() -> None:
    fused = await run("forgot-badly", test=["both"] * 4 + ["fixed"] * 4)
    mean = await run("between-badly", test=["both"] * 4 + ["fixed"] * 4)
    [beside] = beside_mean([fused], [mean])
    assert beside.right("mean of the weights") == mean.right("assistant") != fused.right("draft")
    assert beside.right("cosd") == fused.right("cosd") and beside.ways == fused.ways
    assert beside_mean([fused], []) == []
    [table] = forgetting(scenarios([fused, mean]))
    assert [row[0] for row in table.rows] == ["forgot-badly"]
    assert [one.rows for one in forgetting({})] == [[]]
