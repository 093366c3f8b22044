"""Advice on scripted pairs of which it is known whether to fuse them, how, and what it gains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compared import pair
from cosd_api import Advice, CoSD, Example, Fusion, RuleVerifier, SettingError, advise, compare
from cosd_api.comparison.choice import parts
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
    made = {one.key: one for one in (Example(prompt=f"Q{at}:", answer=" r") for at in range(count))}
    kinds, (first, second) = PAIRS[name], parts(made)
    return {f"{at} {kinds[at % len(kinds)]}": made[key] for at, key in enumerate([*first, *second])}


async def advice_on(name: str, **options: Any) -> tuple[Advice, dict[str, Example], ScriptedProvider, ScriptedProvider]:
    questions = asked(name)
    draft, assistant = pair(questions)
    options = {"methods": METHODS, "max_tokens": 4, **options}
    return await advise(questions.values(), draft=draft, assistant=assistant, **options), questions, draft, assistant


async def test_a_complementary_pair_is_fused() -> None:
    found, questions, draft, assistant = await advice_on("complementary")
    assert (found.decision, found.way, found.reverse, found.tried) == ("fuse", "cosd", False, 4)
    assert found.right["fused"] == found.tested and found.gain is not None and found.gain.low > 0.15
    assert found.chose + found.tested == QUESTIONS - 2  # one in each part is for development
    text = str(found)
    assert text.startswith("Fuse them. Let the draft (")
    assert "by cosd with the verifier rule (alpha=0.5, beta=0.5)." in text
    assert re.search(
        r"it had \d+ \(100%\) right, and the better model alone \(the \w+\) \d+ \(\d+%\): a gain of \+\d+ points", text
    )
    assert "It had the most right answers of 4 ways to fuse on 11 other questions." in text
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
    assert "Of 4 ways to fuse, none had more right answers to 11 questions than it: " in text
    assert "16 questions cannot show a gain of less than 38 points; more of them would." in text
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
    assert fusion.limits == {"max_tokens": 4, "stop": "\n"}
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
    assert draft.requests + assistant.requests == before and resumed.billed_tokens == 0
    assert resumed.model_copy(update={"billed_tokens": found.billed_tokens}) == found


@pytest.mark.extended
async def test_a_comparison_advises_by_its_answers() -> None:
    questions = asked("complementary", 50)
    draft, assistant = pair(questions)
    whole = await compare(questions.values(), draft=draft, assistant=assistant, methods=METHODS, max_tokens=4)
    found = whole.advice()
    assert (found.decision, found.chose + found.tested) == ("fuse", whole.questions)
    with pytest.raises(SettingError, match="choosing must be a number between"):
        whole.advice(choosing=0)


async def test_it_is_unknown_where_it_was_stopped() -> None:
    found, *_ = await advice_on("complementary", max_billed_tokens=30)
    assert (found.decision, found.way) == ("unknown", None)
    assert str(found).startswith("No advice yet: max_billed_tokens=30 is reached")
    found, *_ = await advice_on("complementary", confirm=lambda _: False)
    assert str(found) == "No advice yet: it was not confirmed."


async def test_too_few_questions_are_refused() -> None:
    with pytest.raises(SettingError, match="advice takes at least 20 questions, better a hundred, not 3"):
        await advise([*asked("copy").values()][:3], draft="http://a", assistant="http://b")
