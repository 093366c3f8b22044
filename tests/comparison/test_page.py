"""The pages about a comparison and about advice: what is in them, and that whatever somebody wrote is text in them."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from compared import in_turn, pair
from cosd_api import Example, Message, advise, compare
from cosd_api.comparison import Advice
from cosd_api.comparison.page import advice_page, comparison_page
from cosd_providers import ConnectError
from cosd_providers.testing import Fault
from sample_comparison import EXAMPLES, KEYS, sample_comparison
from seen import Seen

MARKUP = "</script><img src=x onerror=alert(1)>&amp;"
HOSTILE = f"{MARKUP}<!--\u2028]]>\"'\u202e"


def test_the_page_has_every_section_and_the_numbers() -> None:
    seen = Seen(comparison_page(sample_comparison(), examples=EXAMPLES, title="Mine?"))
    assert seen.texts["h1"] == ["Mine?"] and seen.texts["title"][0] == "Mine?"
    assert seen.texts["h2"] == [
        "Notes",
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


def test_what_it_advises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete comparison of enough questions; one that stopped, or has few, has no advice."""
    few = Seen(comparison_page(sample_comparison(stopped=None)))
    why = "There is no advice here: it needs at least 20 test questions that both models have answered, preferably a "
    why += "hundred."
    assert "Advice" not in few.texts["h2"] and why in few.texts["p"]
    monkeypatch.setattr("cosd_api.comparison.looks.LEAST_QUESTIONS", 5)
    stopped = Seen(comparison_page(sample_comparison()))
    assert "Advice" not in stopped.texts["h2"] and why not in stopped.texts["p"]
    seen = Seen(comparison_page(sample_comparison(stopped=None)))
    assert seen.texts["h2"][:3] == ["Notes", "Advice", "Results"] and why not in seen.texts["p"]
    assert any(text.startswith("Undecided. Use the assistant (large) alone for now. ") for text in seen.texts["p"])
    assert (
        "From one look at all test questions, with an error of at most 4 % over all ways together." in seen.texts["p"]
    )


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
    assert seen.texts["h2"] == ["Results", "Quality and cost", "Endpoints"]
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


# Advice.


async def advice_on(*kinds: str, down: tuple[int, ...] = (), **options: Any) -> Advice:
    questions = in_turn(kinds, 40)
    draft, assistant = pair(questions)
    draft.faults = [Fault(ConnectError("it is down"), request=at) for at in down]
    given: dict[str, Any] = {"methods": ["cosd", "cool"], "both_ways": False, "max_tokens": 4, **options}
    return await advise(questions.values(), draft=draft, assistant=assistant, concurrency=1, **given)


async def test_the_page_has_the_advice_the_test_and_all_ways() -> None:
    advice = await advice_on("fixed", "draft")
    seen = Seen(advice_page(advice, title="Mine?"))
    assert seen.texts["h1"] == ["Mine?"]
    assert seen.texts["h2"] == ["Advice", "The models alone", "Ways to choose from", "Endpoints"]
    assert str(advice) in seen.texts["p"]
    assert "fuse them is the advice" in seen.texts["li"]
    assert any(text.startswith("Each way at its last look, next to") for text in seen.texts["p"])
    models, ways, _ = seen.texts["table"]
    assert "cosd" not in models and ways.index("cosd") < ways.index("cool")
    assert seen.texts["p"].count("answers of at most 4 tokens, seed 0") == 1
    assert advice_page(Advice.model_validate_json(advice.model_dump_json())) == advice_page(advice)


async def test_undecided_and_one_model_alone() -> None:
    seen = Seen(advice_page(await advice_on("both", "neither")))
    assert seen.texts["h2"] == ["Advice", "The models alone", "Ways to choose from", "Endpoints"]
    assert "undecided is the advice" in seen.texts["li"]
    seen = Seen(advice_page(await advice_on("both", "neither", worth=0.3)))
    assert "the draft alone is the advice" in seen.texts["li"]


async def test_a_way_that_was_dropped_and_notes() -> None:
    advice = await advice_on("fixed", "draft")
    ways = (advice.ways[0], advice.ways[1].model_copy(update={"continued": False}))
    seen = Seen(advice_page(advice.model_copy(update={"ways": ways, "notes": (MARKUP,)})))
    assert seen.texts["h2"][0] == "Notes" and "img" not in seen.tags
    assert [text.endswith("dropped") for text in seen.texts["tr"] if text.startswith(("cosd", "cool"))] == [False, True]


async def test_what_failed_and_what_was_left_out() -> None:
    advice = await advice_on("fixed", "draft", down=(1,), methods=["cosd", "average"], unit="word")
    seen = Seen(advice_page(advice))
    assert seen.texts["h2"][-3:] == ["Failed", "Left out", "Endpoints"]
    assert [text for text in seen.texts["tr"] if "it is down" in text] == ["draft1 questionsmall: it is down"]
    assert any(text.startswith("average") for text in seen.texts["tr"])


async def test_it_was_stopped() -> None:
    advice = await advice_on("fixed", "draft", max_billed_tokens=30)
    seen = Seen(advice_page(advice))
    assert "not known yet is the advice" in seen.texts["li"]
    assert any(text.startswith("No advice yet: max_billed_tokens=30 is reached") for text in seen.texts["p"])


@pytest.mark.extended
async def test_a_comparison_that_advised() -> None:
    questions = {
        **in_turn(("fixed", "draft"), 20),
        **{f"{at} both": Example(prompt=f"P{at}:", answer=" r") for at in range(9)},
    }
    draft, assistant = pair(questions)
    found = await compare(questions.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    seen = Seen(advice_page(found.advice()))
    assert seen.texts["h2"][:2] == ["Advice", "Results"]
    assert "random gate" in seen.texts["table"][0]


async def test_text_on_the_page_of_advice_stays_text() -> None:
    advice = await advice_on("fixed", "draft")
    endpoint = advice.draft.model_copy(update={"model": MARKUP, "engine": MARKUP})
    part = advice.parts[0].model_copy(update={"draft": endpoint, "warnings": (MARKUP,), "grader": MARKUP})
    hostile = advice.model_copy(update={"draft": endpoint, "grader": MARKUP, "way": MARKUP, "parts": (part,) * 2})
    seen = Seen(advice_page(hostile, title=MARKUP))
    assert "img" not in seen.tags and "script" not in seen.tags and seen.texts["h1"] == [MARKUP]
