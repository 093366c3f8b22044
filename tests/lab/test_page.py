"""The pages in the documents are made of what was kept."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.lab.all_claims import all_claims
from benchmarks.lab.claims import scenarios
from benchmarks.lab.findings import findings, named
from benchmarks.lab.numbers import OF_THESE
from benchmarks.lab.page import page, short_page, tables
from benchmarks.lab.protocol import FOLDER, protocol_hash
from benchmarks.lab.runs import RunsFile, read_runs
from lab_runs import run

RESULTS = FOLDER / "results"
PAGES, DOCS = FOLDER / "pages", FOLDER.parents[1] / "docs"


@cache
def _read(kept: Path) -> RunsFile:
    return read_runs(kept)


def _without_draws(words: str) -> str:
    """A page without what hangs on the draws for its intervals: ends, p-values, verdicts, and the widths of columns."""
    words = re.sub(r"\[[^\]]*, [^\]]*\]|< 0\.001|\b[01]\.\d{3}\b|\*\*(not )?(seen|tested|reversed)\*\*", "", words)
    words = words.replace(OF_THESE, "")
    return re.sub(r"as predicted|not as predicted|undecided|not tested|no room[^|]*|[ :-]+", " ", words)


@pytest.mark.extended
@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("kept", sorted(RESULTS.glob("*.jsonl.xz")), ids=lambda path: path.name)
def test_the_pages_are_what_was_kept(kept: Path) -> None:
    file = _read(kept)
    name = file.about["size"]
    for ending, made in (("", page(file)), ("-tables", tables(file))):
        written = (PAGES / f"{name}{ending}.md").read_text(encoding="utf-8")
        assert _without_draws(written) == _without_draws(made), "run `make lab ARGS=--page`, of the quick size too"


@pytest.mark.extended
@pytest.mark.usefixtures("few_draws")
def test_the_short_page_is_of_the_quick_run() -> None:
    made = short_page(_read(RESULTS / "quick.jsonl.xz"))
    assert made is not None
    written = (DOCS / "laboratory.md").read_text(encoding="utf-8")
    assert _without_draws(written) == _without_draws(made), "run `make lab ARGS='--quick --page'`"
    assert len(written.split()) < 1000


@pytest.mark.extended
@pytest.mark.usefixtures("few_draws")
def test_the_page_of_all_claims_is_of_all_that_is_kept() -> None:
    made = all_claims([_read(path) for path in RESULTS.glob("*.jsonl.xz")])
    written = (PAGES / "claims.md").read_text(encoding="utf-8")
    several = [[line.split("|")[1:3] for line in words.splitlines() if "**" in line] for words in (made, written)]
    assert several[0] == several[1], "run `make lab ARGS=--page`"


@pytest.mark.usefixtures("few_draws")
async def test_a_page_says_when_what_decides_has_changed() -> None:
    about = {"size": "toy", "items": 10, "hash": "0" * 64, "date": "2026-01-01", "seconds": 61, "machine": "Linux"}
    about |= {"likelihoods": [], "to_come": []}
    runs = [await run()]
    words = page(RunsFile(runs, about))
    assert (
        f"**changed after the run**: the deciding code has the hash `{protocol_hash()}` today" in words
        and "0" * 64 in words
    )
    words = page(RunsFile(runs, about | {"hash": protocol_hash()}))
    assert "| that of the protocol |" in words and "changed after" not in words


@pytest.mark.usefixtures("few_draws")
async def test_sentences_are_of_one_run_and_have_its_figures(tmp_path: Path) -> None:
    """A later run, of other questions or of more, does not carry them."""
    ways = {"cosd": {"ratio": [0.5, 0.25, 1]}}
    scored = [{"cell": "a-b", "task": "held", "ways": ways}, {"cell": "a-b", "task": "choice", "ways": {}}]
    about = {"hash": "0" * 64, "items": 10, "date": "2026-01-01", "likelihoods": scored}
    file = RunsFile([await run(), await run("n1")], about)
    found, path = scenarios(file.runs), tmp_path / "quick.md"
    assert findings(path, file, found) == "Nothing was concluded of this run yet.\n"
    path.write_text(
        named(file) + "{right: a-b; draft} to {right: a-b; cosd; bio}, {less: a-b; cosd; cosd}, {gain: a-b; draft}\n"
        "{mended: a-b; cosd}, {spoilt: a-b; cosd}, {beyond: a-b; cosd}, {sure: a-b; draft}, {times: a-b; cosd; cosd}\n"
        "{sure_spoilt: a-b; cosd} {requests: a-b; draft} {perplexity: a-b; held; cosd} {room: n1}, {ms: a-b; draft}\n",
        encoding="utf-8",
    )
    shares, numbers, rest = findings(path, file, found).splitlines()
    assert shares.startswith("37.5 % to 50.0 %, 0.0 [-") and "{" not in shares
    assert numbers == "0 of 3, 1 of 3, 0 of 2, 3 of 5, 1.0"
    assert rest.startswith("0 of 2 1.0 0.50 [0.25, 1.00] +50.0 [")
    for change in ({"hash": "1" * 64}, {"items": 11}, {"date": "2026-01-02"}):
        assert findings(path, RunsFile(file.runs, about | change), found).startswith("Nothing was concluded")
    path.write_text(named(file) + "{right: a-c; draft}\n", encoding="utf-8")
    with pytest.raises(KeyError):
        findings(path, file, found)
