"""The report and the page about a comparison: what is in them, and that whatever somebody wrote is text in the page."""

from __future__ import annotations

import base64
import hashlib

import pytest

from support.seen import Seen
from toys.sample_comparison import page, sample_comparison

MARKUP = "</script><img src=x onerror=alert(1)>&amp;"
HOSTILE = f"{MARKUP}<!--\u2028]]>\"'\u202e"


def test_the_row_of_a_contestant() -> None:
    lines = str(sample_comparison()).splitlines()
    head = next(line for line in lines if "accuracy" in line)
    assert head.split("  ")[-1] == "per 1,000" and head.count("won:lost") == head.count("95 %") - 2 == 2
    row = next(line for line in lines if line.startswith("cosd  "))
    assert row.split() == [
        *("cosd", "4/5", "80.0", "38", "to", "96"),
        *("+60.0", "+0", "to", "+100", "3:0", "0.386"),
        *("+40.0", "-20", "to", "+100", "2:0", "0.764"),
        *("+20.0", "-40", "to", "+80", "1:0"),
        *("90%", "250", "1.0", "40", "0.04"),
    ]
    cool = next(line for line in lines if line.startswith("cool"))
    assert " ".join(cool.split()) == "cool 0/0 (5 failed, 0.0 of all)"
    assert not {"-0", "-0.0"} & {*str(sample_comparison()).split()}


def test_the_report_says_what_failed_and_was_left_out() -> None:
    words = str(sample_comparison())
    assert words.startswith(
        "small as the draft, large as the assistant, graded by last-number: 5 test questions, 1 to set baselines; "
        "answers of at most 64 tokens, ending before '###', seed 0\n\n"
    )
    for part in (
        "Failed:\n  cool, 5 questions: the prompt is too long\n  draft, 1 question that set baselines: it is down",
        "Left out:\n  average; safe: no common tokenizer",
        "Billed tokens: 1,234, 0 of them in this run.",
        "No way is shown to be better than both models alone, with an error of at most 5 % for all ways together.",
        "Not complete: the limit of tokens is reached.\n\nNote: a note.",
    ):
        assert part in words, part
    assert "\n\nUndecided. Use the assistant (large) alone for now. " in str(sample_comparison(stopped=None))


def test_cached_tokens_have_a_column_where_a_server_reports_some() -> None:
    found = sample_comparison()
    assert "cached" not in str(found)
    standings = [one.model_copy(update={"cached": {"draft": 1200.0, "assistant": 34.0}}) for one in found.standings]
    row = next(
        line for line in str(found.model_copy(update={"standings": tuple(standings)})).splitlines() if "4/5" in line
    )
    assert row.split()[-2] == "1,234"  # before the price


def test_the_page_has_the_table_the_plot_and_the_advice() -> None:
    found = sample_comparison(stopped=None)
    seen = Seen(page(found))
    assert seen.texts["h2"] == ["Advice", "Results", "Quality and cost"]
    assert str(found.advice()) in seen.texts["p"]
    assert "cosd" in seen.texts["pre"][0] and "won:lost" in seen.texts["pre"][0]
    assert [text for text in seen.texts["g"] if text.startswith("\ncosd: 80.0 %, 40 tokens")]
    assert len(seen.texts["g"]) == 5  # neither the oracle nor a contestant without answers
    assert "No advice: the limit of tokens is reached." in Seen(page(sample_comparison())).texts["p"]


def test_a_comparison_that_has_hardly_begun() -> None:
    found = sample_comparison()
    nothing = tuple(one.model_copy(update={"answered": 0, "right": 0, "differences": {}}) for one in found.standings)
    seen = Seen(page(found.model_copy(update={"standings": nothing, "stopped": None})))
    assert "No answer is complete yet." in seen.texts["p"]
    assert "No advice: no way to fuse these models has answered." in seen.texts["p"]


@pytest.mark.parametrize("hostile", [HOSTILE, "=1+1", "\x00\x1b[31m", "a\nb"])
def test_text_that_looks_like_html_stays_text(hostile: str) -> None:
    plain = Seen(page(sample_comparison("x")))
    document = page(sample_comparison(hostile))
    seen = Seen(document)
    assert seen.tags == plain.tags
    assert [one[:2] for one in seen.attributes] == [one[:2] for one in plain.attributes]
    assert "img" not in seen.tags and "script" not in seen.tags
    assert not set(document) & {"\u202e", "\u2028", "\x00", "\x1b"}


def test_nothing_is_loaded_no_script_runs_and_the_policy_says_so() -> None:
    document = page(sample_comparison())
    seen = Seen(document)
    loading = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "style"}
    assert {value for _, name, value in seen.attributes if name in loading} == {"data:,"}
    policy = next(value for tag, name, value in seen.attributes if tag == "meta" and name == "content")
    style = document.partition("<style>")[2].partition("</style>")[0]
    wanted = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{wanted}'; script-src 'none'; ")
    assert "url(" not in style and "@import" not in style
