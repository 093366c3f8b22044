"""A comparison as files for other programs."""

from __future__ import annotations

import csv
import doctest
import io
import json
import math
import re
from pathlib import Path

import pytest

from cosd_api.comparison.exports import PAGE, RESULTS, TABLE, answers_jsonl, standings_csv, write_exports
from sample_comparison import EXAMPLES, RIGHT, sample_comparison


def test_the_table_as_csv() -> None:
    found = sample_comparison()
    rows = list(csv.DictReader(io.StringIO(standings_csv(found))))
    assert [row["name"] for row in rows] == [one.name for one in found.standings]
    cosd = next(row for row in rows if row["name"] == "cosd")
    assert float(cosd["accuracy"]) == 0.8 and float(cosd["difference_to_draft"]) == pytest.approx(0.6)
    assert (cosd["won_draft"], cosd["lost_draft"], cosd["both_draft"], cosd["neither_draft"]) == ("3", "0", "1", "1")
    assert (cosd["billed"], cosd["read_draft"], cosd["requests_assistant"]) == ("40.0", "20.0", "0.5")
    assert cosd["cached_draft"] == "" and "cached_assistant" in cosd
    assert (cosd["places_assistant"], cosd["put_right"], cosd["on_frontier"]) == ("4", "3", "true")
    assert rows[0]["better_model"] == "true" and rows[0]["difference_to_draft"] == "" == rows[0]["p_draft"]
    assert {(row["max_tokens"], row["stop"], row["seed"], row["unit"]) for row in rows} == {("64", '["###"]', "0", "")}
    assert rows[-1]["accuracy"] == "" == rows[-1]["billed"]  # nothing answered


def test_numbers_survive_the_csv() -> None:
    for one, row in zip(
        (found := sample_comparison()).standings, csv.DictReader(io.StringIO(standings_csv(found))), strict=True
    ):
        assert math.isnan(one.accuracy.value) or float(row["accuracy_low"]) == one.accuracy.low


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@a", "\ta"])
def test_no_name_becomes_a_formula(name: str) -> None:
    rows = list(csv.reader(io.StringIO(standings_csv(sample_comparison(name)))))
    assert rows[5][0] == f"'{name}"


def test_answers_as_json_lines() -> None:
    found = sample_comparison("a\nb\u2028ü")
    lines = [json.loads(line) for line in answers_jsonl(found, EXAMPLES).split("\n")[:-1]]
    assert len(lines) == len(RIGHT) * len(EXAMPLES)
    first = lines[0]
    assert (first["contestant"], first["prompt"], first["reference"], first["right"]) == ("draft", "Q0", " 0", True)
    assert first["text"] == "a\nb\u2028ü"
    assert first["usage"]["draft"] == {"requests": 1, "read": 5, "written": 3, "cached": 0}
    assert [line["development"] for line in lines[:6]] == [True, False, False, False, False, False]
    assert "prompt" not in json.loads(answers_jsonl(found).split("\n")[0])
    assert not {"key", "graded", "type"} & first.keys()


def test_the_page_of_the_documentation_names_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert [name for name in (PAGE, TABLE, RESULTS) if f"| `{name}` |" not in text] == []
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```pycon\n(.*?)```", text, re.DOTALL)
    given = {"found": sample_comparison(), "examples": EXAMPLES}
    test = doctest.DocTestParser().get_doctest(block, given, "comparison.md", None, None)
    assert doctest.DocTestRunner().run(test) == (0, 2)
    assert (tmp_path / "compared" / PAGE).exists()


def test_files_are_written_over_earlier_ones(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        files = write_exports(sample_comparison(), folder, EXAMPLES)
    assert [file.name for file in files] == [PAGE, TABLE, RESULTS] and all(file.parent == folder for file in files)
    assert "Q2" in files[0].read_text(encoding="utf-8") and files[1].read_bytes().count(b"\n") == 8
