"""Every claim has its verdict and its page; none is left out."""

from __future__ import annotations

import pytest

from benchmarks.lab.all_claims import all_claims, decided_in
from benchmarks.lab.claims import CLAIMS
from benchmarks.lab.runs import Run, RunsFile
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")


def _file(size: str, items: int, *runs: Run) -> RunsFile:
    return RunsFile(runs, {"size": size, "items": items})


async def test_the_larger_run_decides_what_both_have_tested() -> None:
    healed = "a model that has forgotten is healed"
    small = _file("quick", 100, await run("forgot-badly", test=["fixed"] * 16 + ["both"] * 4), await run("n4"))
    large = _file("full", 200, await run("forgot-badly", test=["fixed"] * 2 + ["spoilt"] * 2 + ["both"] * 4))
    words = all_claims([large, small])
    rows = [line for line in words.splitlines() if line.startswith("| C") and "**" in line]
    assert len(rows) == len(CLAIMS) + 1 == len(decided_in(small))
    [row] = [line for line in rows if healed in line]
    assert "**not seen**" in row and "[200 questions](full.md#the-papers-claims)" in row
    [row] = [line for line in all_claims([small]).splitlines() if healed in line]
    assert "**seen**" in row and "[100 questions](quick.md#the-papers-claims)" in row
    [row] = [line for line in rows if "sure and wrong spoils" in line]
    assert "[100 questions]" in row  # the larger run has nothing for it
    counts = [line for line in words.splitlines() if line.startswith("| *")]
    assert sum(int(line.split("|")[2].split(" of ")[0]) for line in counts) == len(rows)
    assert "`endless`" in rows[-1] and "**not tested**" in rows[-1]
