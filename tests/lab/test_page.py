"""The page in the documents is made of what was kept."""

from __future__ import annotations

import pytest

from benchmarks.lab.page import page
from benchmarks.lab.protocol import FOLDER
from benchmarks.lab.runs import read_runs

KEPT = FOLDER / "results" / "quick.jsonl.xz"


@pytest.mark.extended
@pytest.mark.skipif(not KEPT.exists(), reason="the laboratory was not run yet")
def test_the_page_is_what_was_kept() -> None:
    written = (FOLDER.parents[1] / "docs" / "laboratory.md").read_text(encoding="utf-8")
    assert written == page(read_runs(KEPT)), "run `make lab ARGS='--quick --page'`"
