"""Figures of speed, cost and quality in the documents are those that the benchmark has kept."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from benchmarks.__main__ import parsed
from benchmarks.page import (
    all_tables,
    client_in_words,
    gateway_in_words,
    pages,
    tables,
    time_and_price,
)
from benchmarks.report import Table, save

README = Path(__file__).parents[2] / "README.md"
PAGES = (README, README.parent / "CONTRIBUTING.md", *README.parent.glob("docs/*.md"))


def test_commands_of_the_benchmark_are_taken() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    told = [one for text in texts for one in re.findall(r'make bench ARGS=("[^"]+"|[\w-]+)', " ".join(text.split()))]
    assert len(told) > 5
    for one in told:
        parsed(shlex.split(one.strip('"')))


def test_the_pages_are_what_was_kept() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run `make bench ARGS=--page`"


def test_the_readmes_figures_are_what_was_kept() -> None:
    kept = {str(row[0]): row[2:4] for row in time_and_price().rows}
    words = " ".join(README.read_text(encoding="utf-8").split())
    times, requests = kept["a: cosd-api"]
    assert f"takes {times} times as long as the draft alone and sends {requests} requests" in words
    times, requests = kept["c: one by one"]
    assert f"one token at a time would take {times} times as long and {requests} requests" in words


def test_the_readmes_words_on_the_client_are_what_was_kept() -> None:
    assert client_in_words() in " ".join(README.read_text(encoding="utf-8").split()), "run `make bench ARGS=client`"


def test_the_words_on_the_gateway_are_what_was_kept() -> None:
    page = " ".join((README.parent / "docs" / "gateway.md").read_text(encoding="utf-8").split())
    assert [one for one in gateway_in_words() if one not in page] == [], "run `make bench ARGS=gateway`"


def test_tables_come_back_as_they_were_kept(tmp_path: Path) -> None:
    table = Table("One", ["what", "how many"], [["a", 1], ["b", None], ["c", 0.5]], ["a note"], {"raw": [1, 2]})
    save("real", [table], tmp_path)
    [found] = tables("real", tmp_path)
    assert found.markdown() == table.markdown()
    assert "## A real language model" in all_tables(tmp_path)
    assert tables("gateway", tmp_path) == []
