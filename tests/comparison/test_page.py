"""The page about a comparison: what is in it, and that whatever somebody wrote is text in it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from cosd_api import Example, Message
from cosd_api.comparison.page import comparison_page
from sample_comparison import EXAMPLES, KEYS, sample_comparison
from seen import Seen

MARKUP = "</script><img src=x onerror=alert(1)>&amp;"
HOSTILE = f"{MARKUP}<!--\u2028]]>\"'\u202e"


def test_the_page_has_every_section_and_the_numbers() -> None:
    seen = Seen(comparison_page(sample_comparison(), examples=EXAMPLES, title="Mine?"))
    assert seen.texts["h1"] == ["Mine?"] and seen.texts["title"][0] == "Mine?"
    assert seen.texts["h2"] == [
        "Notes",
        "Advice",
        "Results",
        "Quality and cost",
        "Who was right at the replaced places",
        "Calibration",
        "Questions that make the difference",
        "Failed",
        "Left out",
        "Endpoints",
    ]
    rows = seen.texts["tr"]
    assert "cool5 questionsthe prompt is too long" in rows and "draft1 question that set baselinesit is down" in rows
    figures = " ".join(seen.texts["li"])
    assert "5 test questions, and 1 to set baselines" in figures
    assert "20.0 % right by the better model alone (draft)" in figures
    assert "80.0 % right by cosd, the best of 4 methods and baselines" in figures
    assert "+60.0 points of difference (95 %: +0.0 to +100.0), p = 0." in figures
    assert "1,234 tokens billed for the comparison" in figures
    assert not {"-0", "-0.0"}.intersection(f"{figures} {sample_comparison()} {' '.join(seen.texts['td'])}".split())
    body = "".join(seen.texts["body"])
    for words in (
        "small as the draft, large as the assistant · graded by last-number",
        "answers of at most 64 tokens, ending before '###', seed 0",
        "This comparison is not complete: the limit of tokens is reached",
        "Differences are to each model alone",
        "Every token has at least 0.5 in 1 of 2 wrong answers.",
        "Only cosd is right: 3 questions.",
        "Only the draft alone is right: no question.",
        "average, safe",
        "http://gpu1:8080",
    ):
        assert words in body, words
    assert "user:key" not in body and "key=1" not in body


def test_cached_tokens_have_a_column_where_a_server_reports_some() -> None:
    found = sample_comparison()
    words = "cached: tokens from the cache of a server"
    assert words not in comparison_page(found) and "cached" not in str(found).split("\n\n")[1]
    standings = [one.model_copy(update={"cached": {"draft": 1200.0, "assistant": 34.0}}) for one in found.standings]
    found = found.model_copy(update={"standings": tuple(standings)})
    page = comparison_page(found)
    assert words in page and "1,234" in next(text for text in Seen(page).texts["tr"] if text.startswith("cosd *"))
    row = next(line for line in str(found).splitlines() if line.startswith("cosd *"))
    assert row.split()[-2] == "1,234"  # before the price


def test_the_row_of_a_contestant() -> None:
    cells = next(text for text in Seen(comparison_page(sample_comparison())).texts["tr"] if text.startswith("cosd *"))
    for words in (
        "4 of 5",
        "80.0 %",
        "38 to 96",
        "+60.0",
        "+0 to +100",
        "3:0",
        "90%",
        "250 ms",
        "1.5",
        "40",
        "0.04",
    ):
        assert words in cells, words


def test_what_it_advises() -> None:
    stopped = Seen(comparison_page(sample_comparison()))
    assert "No advice: the limit of tokens is reached." in stopped.texts["p"]
    seen = Seen(comparison_page(sample_comparison(stopped=None)))
    assert seen.texts["h2"][:3] == ["Notes", "Advice", "Results"]
    assert any(text.startswith("Undecided. Use the draft (small) alone for now. ") for text in seen.texts["p"])


def test_a_contestant_without_answers_has_an_empty_row() -> None:
    seen = Seen(comparison_page(sample_comparison()))
    assert next(text for text in seen.texts["tr"] if text.startswith("cool")) == "cool0 of 05 failed (0.0 % of all)–"


def test_questions_are_shown_where_they_are_given() -> None:
    with_them = Seen(comparison_page(sample_comparison(), examples=EXAMPLES)).texts["bdi"]
    assert with_them[:4] == ["Q2", "2", "draft says 2", "cosd says 2"]
    without = Seen(comparison_page(sample_comparison())).texts["bdi"]
    assert without[:2] == ["draft says 2", "cosd says 2"] and len(without) == 6


def test_a_conversation_and_a_long_text() -> None:
    chat = Example(prompt=(Message("system", "Be short."), Message("user", "Which?")), answer=" x" * 1000)
    found = sample_comparison()
    answers = tuple(
        one.model_copy(update={"question": chat.key}) if one.question == KEYS[2] else one for one in found.answers
    )
    shown = Seen(comparison_page(found.model_copy(update={"answers": answers}), examples=[chat])).texts["bdi"]
    assert shown[0] == "system: Be short.\n\nuser: Which?"
    assert shown[1].endswith("x…") and len(shown[1]) < 602


def test_of_many_questions_the_first_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosd_api.comparison.page._MOST_ROWS", 2)
    seen = Seen(comparison_page(sample_comparison(), examples=EXAMPLES))
    assert "Only cosd is right: 3 questions, of which 2 are shown." in seen.texts["p"]
    assert len(seen.texts["bdi"]) == 8


def test_a_comparison_that_has_hardly_begun() -> None:
    found = sample_comparison()
    nothing = tuple(
        one.model_copy(
            update={"answered": 0, "right": 0, "counts": None, "difference": None, "holm": None, "replaced": None}
        )
        for one in found.standings
    )
    less: dict[str, Any] = {
        "calibration": {},
        "left_out": (),
        "failures": (),
        "warnings": (),
        "stopped": None,
        "answers": (),
    }
    seen = Seen(comparison_page(found.model_copy(update={"standings": nothing, **less})))
    assert seen.texts["h2"] == ["Advice", "Results", "Quality and cost", "Endpoints"]
    assert "No answer is complete yet." in seen.texts["p"]


@pytest.mark.parametrize("hostile", [HOSTILE, "=1+1", "\x00\x1b[31m", "a\nb"])
def test_text_that_looks_like_html_stays_text(hostile: str) -> None:
    examples = [one.model_copy(update={"prompt": hostile}) for one in EXAMPLES]
    plain = Seen(comparison_page(sample_comparison("x"), examples=EXAMPLES, title="x"))
    found = sample_comparison(hostile)
    document = comparison_page(found, examples=[*examples, *EXAMPLES], title=hostile)
    seen = Seen(document)
    assert seen.tags == plain.tags
    assert [one[:2] for one in seen.attributes] == [one[:2] for one in plain.attributes]
    assert "img" not in seen.tags and "script" not in seen.tags
    assert not [name for _, name, _ in seen.attributes if name.startswith("on") and name != "on"]
    assert not set(document) & {"\u202e", "\u2028", "\x00", "\x1b"}


def test_nothing_is_loaded_no_script_runs_and_the_policy_says_so() -> None:
    document = comparison_page(sample_comparison(), examples=EXAMPLES)
    seen = Seen(document)
    loading = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "style"}
    assert {value for _, name, value in seen.attributes if name in loading} == {"data:,"}
    policy = next(value for tag, name, value in seen.attributes if tag == "meta" and name == "content")
    style = document.partition("<style>")[2].partition("</style>")[0]
    wanted = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{wanted}'; script-src 'none'; ")
    assert "url(" not in style and "@import" not in style
