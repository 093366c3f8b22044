"""Figures of speed, cost and quality in the documents are those that the benchmark has kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.page import (
    advice_in_words,
    all_tables,
    batches_in_words,
    client_in_words,
    excerpts,
    gateway_in_words,
    pages,
    tables,
)
from benchmarks.report import Table, save

README = Path(__file__).parents[2] / "README.md"
COMPARISON = README.parent / "docs" / "comparison.md"


def test_the_pages_are_what_was_kept() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "run `make bench ARGS=--page`"


def test_the_readmes_figures_are_what_was_kept() -> None:
    kept = excerpts()
    words = " ".join(README.read_text(encoding="utf-8").split())
    times, requests = kept["a: cosd-api"].split(" | ")
    assert f"takes {times} times as long as the draft alone and sends {requests} requests" in words
    times, requests = kept["c: one by one"].split(" | ")
    assert f"one token at a time would take {times} times as long and {requests} requests" in words


def test_the_words_on_advice_are_what_was_kept() -> None:
    assert advice_in_words() in " ".join(COMPARISON.read_text(encoding="utf-8").split()), "run `make bench ARGS=advice`"


def test_the_readmes_words_on_the_client_are_what_was_kept() -> None:
    assert client_in_words() in " ".join(README.read_text(encoding="utf-8").split()), "run `make bench ARGS=client`"


@pytest.mark.parametrize(("name", "kept"), [("gateway", gateway_in_words), ("batch", batches_in_words)])
def test_the_words_on_serving_are_what_was_kept(name: str, kept: Callable[[], tuple[str, ...]]) -> None:
    page = " ".join((README.parent / "docs" / f"{name}.md").read_text(encoding="utf-8").split())
    assert [one for one in kept() if one not in page] == [], f"run `make bench ARGS={name}`"


def test_tables_come_back_as_they_were_kept(tmp_path: Path) -> None:
    table = Table("One", ["what", "how many"], [["a", 1], ["b", None], ["c", 0.5]], ["a note"], {"raw": [1, 2]})
    save("cpu", [table], tmp_path)
    [found] = tables("cpu", tmp_path)
    assert found.markdown() == table.markdown()
    assert "## The client's processor time" in all_tables(tmp_path)
    assert tables("live", tmp_path) == []
