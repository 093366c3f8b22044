"""Advice on scripted pairs of which it is known whether to fuse them, how, and what it gains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compared import in_parts, pair
from cosd_api import CoSD, Example, Fusion, RuleVerifier, SettingError, advise, compare
from cosd_api.comparison import Advice, ComparisonEstimate
from cosd_api.comparison.advice import parts
from cosd_api.comparison.graders import ExactGrader
from cosd_providers.testing import ScriptedProvider

QUESTIONS = 30
METHODS = ("cosd", "cosd-1-1")
PAIRS: Mapping[str, tuple[str, ...]] = {
    "complementary": ("fixed", "draft"),
    "copy": ("both", "neither"),
    "dominated": ("both", "spoilt", "spoilt"),
    "sure and wrong": ("surer", "draft"),
}


def asked(name: str, count: int = QUESTIONS) -> dict[str, Example]:
    """Questions of the kinds of a pair, in turn, in both parts."""
    return in_parts(PAIRS[name], count)


async def advice_on(name: str, **options: Any) -> tuple[Advice, dict[str, Example], ScriptedProvider, ScriptedProvider]:
    questions = asked(name)
    draft, assistant = pair(questions)
    options = {"methods": METHODS, "max_tokens": 4, **options}
    return await advise(questions.values(), draft=draft, assistant=assistant, **options), questions, draft, assistant


async def test_a_complementary_pair_is_fused() -> None:
    found, questions, draft, assistant = await advice_on("complementary")
    assert (found.decision, found.way, found.reverse, found.tried) == ("fuse", "cosd", False, 4)
    assert found.right["fused"] == found.tested and found.gain is not None and found.gain.low > 0.15
    assert (found.chose, found.others, found.tested) == (12, 18, 18)  # none is for development
    text = str(found)
    assert text.startswith("Fuse them. Let the draft (")
    assert "by cosd with the verifier rule (alpha=0.5, beta=0.5)." in text
    assert re.search(
        r"it had \d+ \(100%\) right, and the better model alone \(the \w+\) \d+ \(\d+%\): a gain of \+\d+ points", text
    )
    assert "It had the most right answers of 4 ways to fuse on 12 other questions." in text
    assert re.search(r"An answer takes [\d.]+ requests and bills \d+ tokens, [\d.]+ times those of the", text)
    assert "So the doubts sit where" not in text  # the assistant is sure where it is wrong
    fusion = found.fusion(draft=draft, assistant=assistant)
    assert fusion.settings.method == CoSD() and fusion.limits == {"max_tokens": 4}
    async with fusion:
        assert [one.text async for one in fusion.map([one.prompt for one in questions.values()])] == [" r"] * QUESTIONS


async def test_a_pair_that_is_sure_and_wrong_needs_alpha_1() -> None:
    found, *_ = await advice_on("sure and wrong", both_ways=False)
    assert (found.decision, found.way) == ("fuse", "cosd-1-1")
    assert found.doubts["draft"].sure == found.doubts["draft"].wrong > 0
    text = str(found)
    assert re.search(
        r"The draft alone was wrong in (\d+) of \d+ answers, and in \1 of these it was sure of every token", text
    )
    assert (
        "the paper's rule (alpha = 0.5) asks nobody at these errors; alpha = beta = 1, surprise and average look"
        in text
    )


@pytest.mark.parametrize(("name", "model"), [("copy", "draft"), ("dominated", "draft")])
async def test_pairs_that_must_not_be_fused(name: str, model: str) -> None:
    found, *_, draft, assistant = await advice_on(name)
    assert (found.decision, found.model, found.way, found.gain) == ("alone", model, None, None)
    assert found.tested == 0  # nothing seemed better, so nothing more was asked
    text = str(found)
    assert text.startswith(f"Use the {model} (")
    assert "Of 4 ways to fuse, none had more right answers to 12 questions than it: " in text
    assert "18 questions cannot show a gain of less than 33 points; more of them would." in text
    with pytest.raises(SettingError, match=re.escape(f"not to fuse these models (use the {model} alone)")):
        found.fusion(draft=draft, assistant=assistant)


@pytest.mark.extended
async def test_a_gain_on_the_choosing_part_alone_is_chance() -> None:
    """The assistant is right where the draft is not, in the questions that choose and in none of the others."""
    made = {one.key: one for one in (Example(prompt=f"Q{at}:", answer=" r") for at in range(QUESTIONS))}
    first, second = parts(made)
    questions = {f"{at} fixed": made[key] for at, key in enumerate(first)}
    questions |= {f"{at} {'both' if at % 2 else 'spoilt'}": made[key] for at, key in enumerate(second, 100)}
    draft, assistant = pair(questions)
    found = await advise(questions.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    # The assistant alone is as good there, so that nothing is chosen at all.
    assert (found.decision, found.way) == ("alone", None)
    questions = {f"{at} {'fixed' if at % 2 else 'draft'}": made[key] for at, key in enumerate(first)}
    questions |= {f"{at} {'both' if at % 2 else 'spoilt'}": made[key] for at, key in enumerate(second, 100)}
    draft, assistant = pair(questions)
    found = await advise(questions.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    assert (found.decision, found.way, found.model) == ("alone", "cosd", "draft")
    assert "which is not more than chance" in str(found)


async def test_the_settings_file_is_what_is_advised(tmp_path: Path) -> None:
    found, *_ = await advice_on("sure and wrong", stop="\n", both_ways=False)
    path = tmp_path / "fusion.yaml"
    found.save(path, draft="http://gpu1:8080", assistant="http://gpu2:8080")
    fusion = Fusion.load(path)
    assert fusion.settings.verifier == RuleVerifier(alpha=1, beta=1)
    assert fusion.limits == {"max_tokens": 4, "stop": ["\n"]}
    comment = " ".join(line.removeprefix("# ") for line in path.read_text().splitlines() if line.startswith("#"))
    assert comment == " ".join(str(found).split())
    assert Advice.model_validate_json(found.model_dump_json()) == found


@pytest.mark.extended
async def test_the_models_change_places_where_the_assistant_should_draft(tmp_path: Path) -> None:
    questions = asked("complementary")
    assistant, draft = pair(questions)
    found = await advise(questions.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    assert (found.decision, found.way, found.reverse) == ("fuse", "cosd, reversed", True)
    assert "Let the assistant (" in str(found)
    found.save(tmp_path / "fusion.yaml", draft="http://gpu1:8080", assistant="http://gpu2:8080")
    assert "draft: http://gpu2:8080\nassistants:\n  - http://gpu1:8080\n" in (tmp_path / "fusion.yaml").read_text()


@pytest.mark.extended
async def test_it_costs_less_than_comparing_everything(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    found, questions, draft, assistant = await advice_on("complementary", path=path)
    before = draft.requests + assistant.requests
    other, again = pair(questions)
    whole = await compare(questions.values(), draft=other, assistant=again, methods=METHODS, max_tokens=4)
    assert found.billed_tokens < 0.75 * whole.billed_tokens
    resumed = await advise(
        questions.values(), draft=draft, assistant=assistant, methods=METHODS, max_tokens=4, path=path
    )
    assert draft.requests + assistant.requests == before
    assert resumed.billed_tokens == found.billed_tokens > 0
    assert resumed.model_copy(update={"parts": found.parts}) == found


@pytest.mark.extended
async def test_a_comparison_advises_by_its_answers() -> None:
    questions = asked("complementary", 50)
    draft, assistant = pair(questions)
    whole = await compare(questions.values(), draft=draft, assistant=assistant, methods=METHODS, max_tokens=4)
    found = whole.advice()
    assert (found.decision, found.chose + found.tested) == ("fuse", whole.questions)
    with pytest.raises(SettingError, match="choosing must be a number between"):
        whole.advice(choosing=0)


@pytest.mark.parametrize("method", ["cosd", "cool", "switch"])
async def test_what_a_comparison_advises_keeps_the_limits_of_what_was_measured(method: str, tmp_path: Path) -> None:
    draft, assistant = pair({})
    given: dict[str, Any] = {"max_tokens": 4, "stop": ["\n", "Q:"], "seed": 3, "unit": "token", "methods": [method]}
    questions = [Example(prompt=f"Q{at}:", answer=" r") for at in range(3)]
    found = await compare(questions, draft=draft, assistant=assistant, confirm=lambda _: False, **given)
    assert (found.max_tokens, found.stop, found.seed, found.unit) == (4, ("\n", "Q:"), 3, "token")
    assert "answers of at most 4 tokens, ending before '\\n' or 'Q:', by the unit token, seed 3" in str(found)
    settings = next(one.settings for one in found.standings if one.name == method)
    advice = found.advice().model_copy(update={"decision": "fuse", "way": method, "settings": settings})
    advice.fusion(draft="http://gpu1:8080", assistant="http://gpu2:8080").save(tmp_path / "fusion.yaml")
    fusion = Fusion.load(tmp_path / "fusion.yaml")
    drawn = {"seed": 3} if method == "switch" else {}  # of a method that draws nothing a seed is refused
    assert fusion.limits == {"max_tokens": 4, "stop": ["\n", "Q:"], **drawn}
    assert fusion.settings.unit == ("token" if method == "cosd" else None)


async def test_the_way_that_is_chosen_is_tested_alone() -> None:
    """Reversed: the same method the other way round is not asked again."""
    questions = asked("complementary")
    assistant, draft = pair(questions)
    found = await advise(questions.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    assert found.way == "cosd, reversed"
    first, second = found.parts
    assert [one.name for one in first.standings] == ["draft", "assistant", "cosd", "cosd, reversed"]
    assert [one.name for one in second.standings] == ["draft", "assistant", "cosd, reversed"]
    assert second.development == () and second.better == found.model
    assert draft.requests + assistant.requests == round(
        sum(sum(one.requests.values()) * one.answered for part in found.parts for one in part.standings)
    )


@pytest.mark.parametrize(
    ("choosing", "words"),
    [(0.8, "6 questions cannot show a gain of less than 100 points"), (0.9, "3 questions cannot show any gain")],
)
async def test_the_words_count_the_questions_that_would_have_tested(choosing: float, words: str) -> None:
    found, *_ = await advice_on("copy", choosing=choosing)
    assert found.way is None and words in str(found)


async def test_the_estimate_covers_both_parts_and_is_confirmed_once(tmp_path: Path) -> None:
    seen: list[ComparisonEstimate] = []

    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return True

    more: dict[str, Any] = {
        "confirm": confirm,
        "path": tmp_path / "answers.jsonl",
        "prices": {"draft": (1, 2), "assistant": (3, 4)},
    }
    found, questions, draft, assistant = await advice_on("complementary", **more)
    (estimate,) = seen
    assert found.tested == 18 and estimate.test is not None
    assert (estimate.questions, estimate.answers) == (30, 12 * 6 + 18 * 3)
    assert estimate.billed_tokens.low <= found.billed_tokens <= estimate.billed_tokens.high
    assert (estimate.test.low, estimate.test.high) < (estimate.test.expected, estimate.billed_tokens.high)
    assert estimate.money is not None and estimate.money[0] < estimate.money[1] < estimate.money[2]
    assert re.search(
        r"; [\d,]+ of them \(at least 0(, at most [\d,]+)?\) to test the way that is chosen", str(estimate)
    )
    # What is there is not estimated, and the way that it has chosen is known.
    again = {"draft": draft, "assistant": assistant, "methods": METHODS, "max_tokens": 4, **more}
    await advise(questions.values(), **again)
    assert (seen[1].answers, seen[1].billed_tokens.high) == (0, 0)
    lines = more["path"].read_text().splitlines(keepends=True)
    more["path"].write_text("".join(lines[: 1 + 2 * 12 * 6]))  # the first part alone
    await advise(questions.values(), **again)
    assert (seen[2].answers, seen[2].known) == (18 * 3, 12 * 6)
    assert seen[2].test is not None and seen[2].test.low == seen[2].billed_tokens.low > 0


async def test_a_grader_that_has_yet_to_grade_the_first_part_leaves_the_choice_open(tmp_path: Path) -> None:
    class Named(ExactGrader):
        @property
        def identity(self) -> str:
            return "exact, with an identity"

    seen: list[ComparisonEstimate] = []
    path = tmp_path / "answers.jsonl"
    await advice_on("complementary", path=path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: 1 + 2 * 12 * 6]))  # the first part alone, under another grader

    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return False

    await advice_on("complementary", path=path, grader=Named(), confirm=confirm)
    assert seen[0].answers == 18 * 3 and seen[0].test is not None and seen[0].test.low == 0 < seen[0].test.high


async def test_it_is_unknown_where_it_was_stopped() -> None:
    found, *_ = await advice_on("complementary", max_billed_tokens=30)
    assert (found.decision, found.way) == ("unknown", None)
    assert str(found).startswith("No advice yet: max_billed_tokens=30 is reached")
    found, *_ = await advice_on("complementary", confirm=lambda _: False)
    assert str(found) == "No advice yet: it was not confirmed."


async def test_too_few_questions_are_refused() -> None:
    with pytest.raises(SettingError, match="advice takes at least 20 questions, better a hundred, not 3"):
        await advise([*asked("copy").values()][:3], draft="http://a", assistant="http://b")
