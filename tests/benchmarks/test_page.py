"""What the documents say of speed and cost is what the benchmark has kept."""

from __future__ import annotations

from pathlib import Path

from benchmarks.page import PAGE, learned, page, summary, tables
from benchmarks.report import Table, save

README = Path(__file__).parents[2] / "README.md"


def test_the_page_is_what_was_kept() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make bench ARGS=--page`"


def test_the_readmes_tables_are_what_was_kept() -> None:
    for table in (summary(), learned()):
        assert table in README.read_text(encoding="utf-8"), "put what `make bench ARGS=--page` prints into the README"


def test_tables_come_back_as_they_were_kept(tmp_path: Path) -> None:
    table = Table("One", ["what", "how many"], [["a", 1], ["b", None], ["c", 0.5]], ["a note"], {"raw": [1, 2]})
    save("cpu", [table], tmp_path)
    [found] = tables("cpu", tmp_path)
    assert found.markdown() == table.markdown()
    assert "## The client's processor time" in page(tmp_path)
    assert tables("live", tmp_path) == []
