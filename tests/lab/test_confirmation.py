"""The contrast that was named beforehand: each training is decided by itself, and the verdict names what failed."""

from __future__ import annotations

import pytest

from benchmarks.lab.confirmation import AHEAD, KEPT, NOT_BEHIND, confirmed, contrasts, table, verdict
from benchmarks.lab.protocol import protocol_hash
from benchmarks.lab.runs import read_runs
from lab_runs import run


@pytest.mark.usefixtures("few_draws")
async def test_a_training_that_fails_is_named() -> None:
    """Sixteen questions that alpha = beta = 1 alone puts right, and in one training none."""
    several = [
        await run(cell, seed=seed, test=(["fixed"] if (cell, seed) == ("a-b", 3) else ["surer"]) * 16)
        for cell in (*AHEAD, NOT_BEHIND)
        for seed in (2, 3)
    ]
    found = contrasts(several)
    assert verdict(found) == "Not confirmed. It fails in a-b (seed 3)."
    assert [row[-1] for row in table(found).rows if row[0] == "a-b"] == ["yes", "no", ""]
    assert verdict([one for one in found if one.cell != "a-b"]).startswith("Confirmed")


@pytest.mark.extended
@pytest.mark.usefixtures("few_draws")
def test_what_was_kept_is_of_this_protocol_and_confirms() -> None:
    kept = read_runs(KEPT)
    assert kept.about["hash"] == protocol_hash()
    assert {one.seed for one in kept.runs} == {2, 3} and {one.cell for one in kept.runs} >= {*AHEAD, NOT_BEHIND}
    assert "Confirmed" in confirmed()
