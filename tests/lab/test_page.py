"""The pages in the documents are made of what was kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lab.claims import scenarios
from benchmarks.lab.findings import findings, named
from benchmarks.lab.page import page, tables
from benchmarks.lab.protocol import FOLDER
from benchmarks.lab.runs import RunsFile, read_runs
from lab_runs import run

KEPT = FOLDER / "results" / "quick.jsonl.xz"
DOCS = FOLDER.parents[1] / "docs"


@pytest.mark.extended
@pytest.mark.skipif(not KEPT.exists(), reason="the laboratory was not run yet")
def test_the_pages_are_what_was_kept() -> None:
    file = read_runs(KEPT)
    for name, made in (("laboratory", page(file)), ("laboratory-tables", tables(file))):
        written = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert written == made, "run `make lab ARGS='--quick --page'`"


@pytest.mark.usefixtures("few_draws")
async def test_sentences_are_of_one_run_and_have_its_figures(tmp_path: Path) -> None:
    """A later run, of other questions or of more, does not carry them."""
    about = {"hash": "0" * 64, "items": 10, "date": "2026-01-01"}
    file = RunsFile([await run(), await run("n1")], about)
    found, path = scenarios(file.runs), tmp_path / "quick.md"
    assert findings(path, file, found) == "Nothing was concluded of this run yet.\n"
    path.write_text(
        named(file) + "{right: a-b; draft} to {right: a-b; cosd; bio}, {less: a-b; cosd; cosd}, {gain: a-b; draft}\n"
        "{mended: a-b; cosd}, {spoilt: a-b; cosd}, {beyond: a-b; cosd}, {sure: a-b; draft}, {times: a-b; cosd; cosd}\n",
        encoding="utf-8",
    )
    shares, numbers = findings(path, file, found).splitlines()
    assert shares.startswith("37.5 % to 50.0 %, 0.0 [-") and "{" not in shares
    assert numbers == "0 of 3, 1 of 3, 0 of 2, 3 of 5, 1.0"
    for change in ({"hash": "1" * 64}, {"items": 11}, {"date": "2026-01-02"}):
        assert findings(path, RunsFile(file.runs, about | change), found).startswith("Nothing was concluded")
    path.write_text(named(file) + "{right: a-c; draft}\n", encoding="utf-8")
    with pytest.raises(KeyError):
        findings(path, file, found)
