"""`cosd explain`: a recorded answer in the terminal and as a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cosd_api import FusionResult, Trace, fuse_sync
from cosd_api.apps.report.page import page
from fakes.commands import cosd, words
from toys import lima


@pytest.fixture
def result() -> FusionResult:
    return fuse_sync("Q:", draft=lima.draft(), assistant=lima.assistant())


@pytest.fixture
def trace(result: FusionResult, tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    result.trace.save(path)
    return str(path)


def test_the_marked_answer_and_what_decided(trace: str) -> None:
    done = cosd("explain", trace, env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert done.stdout.startswith(" The capital is [-Rome-] {+Lima+}. Really.\nmarks: ")
    table = " ".join(done.stdout.split())
    assert "␣Rome 0.3 ␣Lima 0.9 replaced: 0.3 < 0.9 and 0.9 > 1 x 0.3" in table
    assert "both agree" not in table
    assert done.stderr.startswith("cosd: stop ('</s>'), 10 tokens, 1 replacement, ")


def test_a_pipe_gets_the_lines_of_the_answer(tmp_path: Path, result: FusionResult) -> None:
    long = " word" * 100
    path = tmp_path / "trace.jsonl"
    tokens = (result.tokens[0].model_copy(update={"text": long}),)
    result.model_copy(update={"text": long, "tokens": tokens}).trace.save(path)
    assert cosd("explain", str(path)).stdout.startswith(f"{long}\n")


def test_all_lists_what_both_agreed_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    fuse_sync("Q:", draft=lima.draft(), assistant=lima.assistant(), ask="all").trace.save(path)
    some, everything = (cosd("explain", str(path), *more).stdout for more in ([], ["--all"]))
    assert "both agree" not in " ".join(some.split()) and "both agree" in " ".join(everything.split())


def test_warnings_are_repeated(tmp_path: Path, result: FusionResult) -> None:
    path = tmp_path / "trace.jsonl"
    result.model_copy(update={"warnings": ("mind the gap",)}).trace.save(path)
    assert "cosd: note: mind the gap\n" in cosd("explain", str(path)).stderr


def test_the_page_is_written_and_replaced(trace: str, tmp_path: Path, result: FusionResult) -> None:
    place = tmp_path / "report.html"
    place.write_text("what was there")
    done = cosd("explain", trace, "--html", str(place))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"cosd: wrote {place}\n")
    assert place.read_text(encoding="utf-8") == page(result)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file or directory"),
        ("", "this is not a trace"),
        ("Once upon a time\n", "line 1 is not JSON"),
        ('{"kind":"cosd-samples","schema_version":1}\n', "this is not a trace"),
        ('{"kind":"cosd-trace","schema_version":3}\n', "this version of cosd-api reads 1 and 2"),
    ],
)
def test_what_is_no_trace(content: str | None, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_text(content)
    done = cosd("explain", str(path), env={"COLUMNS": "400"})
    assert done.exit_code == 2
    assert "TRACE" in done.stderr and complaint in words(done)
    assert done.stdout == ""


def test_a_trace_that_was_cut_off(trace: str) -> None:
    lines = Path(trace).read_text().splitlines(keepends=True)
    Path(trace).write_text("".join(lines[:-1]))
    done = cosd("explain", trace, env={"COLUMNS": "400"})
    assert done.exit_code == 2 and "it was cut off" in words(done)


def test_a_trace_of_a_form_that_is_not_ours(trace: str) -> None:
    lines = [json.loads(line) for line in Path(trace).read_text().splitlines()]
    lines[1]["draft_prob"] = "sure"
    Path(trace).write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = cosd("explain", trace, env={"COLUMNS": "400"})
    assert done.exit_code == 2 and "tokens.0.draft_prob" in words(done)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--html", "no/such/folder/report.html"], "report.html cannot be written: No such file or directory"),
        (["--html", "x.html", "--all"], "a page has a card for every token"),
    ],
)
def test_wrong_usage(more: list[str], complaint: str, trace: str) -> None:
    done = cosd("explain", trace, *more, env={"COLUMNS": "400"})
    assert done.exit_code == 2 and complaint in words(done)


def test_a_record_that_was_changed_is_shown_with_a_note(trace: str) -> None:
    assert "comes out otherwise" not in cosd("explain", trace).stderr
    text = Path(trace).read_text("utf-8")
    changed = text.replace('"prob":0.9,"agreed":false,"fired":true', '"prob":0.1,"agreed":false,"fired":true')
    assert changed != text
    Path(trace).write_text(changed, "utf-8")
    result = cosd("explain", trace)
    assert result.exit_code == 0
    assert "cosd: note: a replay gives a different result: token 5 (' Li')" in " ".join(result.stderr.split())


def test_the_trace_is_not_written_over(trace: str) -> None:
    result = cosd("explain", trace, "--html", trace)
    assert result.exit_code == 2
    assert "is an input and would be overwritten" in words(result)
    assert Trace.load(trace).replay()
