"""Advice on scripted pairs of which it is known whether to fuse them, how, and what it gains."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compared import in_turn, pair
from cosd_api import CoSD, Example, Fusion, RuleVerifier, SettingError, advise, compare
from cosd_api.comparison import Advice, ComparisonEstimate
from cosd_api.comparison.looks import is_audited
from cosd_providers.testing import ScriptedProvider

QUESTIONS = 40
METHODS = ("cosd", "cosd-1-1")
PAIRS: Mapping[str, tuple[str, ...]] = {
    "complementary": ("fixed", "draft"),
    "copy": ("both", "neither"),
    "dominated": ("both", "spoilt", "spoilt"),
    "sure and wrong": ("surer", "draft"),
}


def asked(name: str, count: int = QUESTIONS) -> dict[str, Example]:
    """Questions of the kinds of a pair, in turn."""
    return in_turn(PAIRS[name], count)


async def advice_on(name: str, **options: Any) -> tuple[Advice, dict[str, Example], ScriptedProvider, ScriptedProvider]:
    questions = asked(name)
    draft, assistant = pair(questions)
    options = {"methods": METHODS, "max_tokens": 4, **options}
    return await advise(questions.values(), draft=draft, assistant=assistant, **options), questions, draft, assistant


async def test_a_complementary_pair_is_fused() -> None:
    found, questions, draft, assistant = await advice_on("complementary")
    assert (found.decision, found.way, found.reverse, found.tried) == ("fuse", "cosd", False, 4)
    assert found.right["fused"] == found.tested and found.gain is not None and 0 < found.gain.low < found.gain.value
    assert (found.questions, found.tested, found.looks) == (40, 20, 2)  # a half decides
    text = str(found)
    assert text.startswith("Fuse them. Let the draft (")
    assert "by cosd with the verifier rule (alpha=0.9, beta=1)." in text
    assert re.search(r"of 20 questions it had 20 \(100%\) right, and that model \d+ \(\d+%\)\.", text)
    assert "with 4 ways and 2 looks counted" in text
    assert re.search(r"An answer takes [\d.]+ requests and bills \d+ tokens, [\d.]+ times those of the", text)
    assert text.endswith("So the doubts are where the errors are, as a rule with alpha = 0.9 needs.")
    fusion = found.fusion(draft=draft, assistant=assistant)
    assert fusion.settings.method == CoSD() and fusion.limits == {"max_tokens": 4}
    async with fusion:
        assert [one.text async for one in fusion.map([one.prompt for one in questions.values()])] == [" r"] * QUESTIONS


async def test_a_pair_that_is_sure_and_wrong_needs_alpha_1() -> None:
    found, *_ = await advice_on("sure and wrong", both_ways=False)
    assert (found.decision, found.way) == ("fuse", "cosd-1-1")
    assert found.doubts["draft"].sure == found.doubts["draft"].wrong > 0
    text = str(found)
    assert "So the doubts are where" not in text
    assert re.search(
        r"The draft alone was wrong in (\d+) of \d+ answers, and in \1 of these it was sure of every token", text
    )
    why = "a rule with alpha = 0.9 asks no assistant about these errors; alpha = beta = 1, surprise and average look"
    assert why in text


@pytest.mark.parametrize("name", ["copy", "dominated"])
async def test_pairs_that_must_not_be_fused(name: str) -> None:
    questions = asked(name, 60)
    draft, assistant = pair(questions)
    found = await advise(questions.values(), draft=draft, assistant=assistant, methods=METHODS, max_tokens=4)
    assert (found.decision, found.model, found.tried) == ("alone", "draft", 4)
    text = str(found)
    assert text.startswith("Use the draft (small) alone. No way to fuse gains 5 points or more: ")
    with pytest.raises(SettingError, match=re.escape("not to fuse these models (use the draft alone)")):
        found.fusion(draft=draft, assistant=assistant)


async def test_what_few_questions_cannot_show_is_undecided() -> None:
    found, *_, draft, assistant = await advice_on("copy")
    assert (found.decision, found.model, found.more) == ("undecided", "draft", 11)
    assert "About 11 more questions would decide: add them to the file and ask again." in str(found)
    with pytest.raises(SettingError, match=re.escape("not to fuse these models (undecided)")):
        found.fusion(draft=draft, assistant=assistant)
    worth, *_ = await advice_on("copy", worth=0.3)
    assert (worth.decision, worth.worth, worth.tested) == ("alone", 0.3, 10)


async def test_one_look_at_the_end() -> None:
    found, *_ = await advice_on("complementary", looks="end")
    assert (found.decision, found.tested, found.looks) == ("fuse", 40, 1)


async def test_equal_texts_are_not_asked_but_for_one_in_twenty() -> None:
    questions = asked("copy", 60)
    draft, assistant = pair(questions)
    found = await advise(questions.values(), draft=draft, assistant=assistant, methods=METHODS, max_tokens=4)
    keys = {one.key for one in questions.values()}
    audited = sum(map(is_audited, keys))
    assert (found.tested, found.equal, found.audited, found.disagreed) == (60, 60 - audited, 4 * audited, 0)
    # A method that draws is asked everything, and so is one of the user's own.
    alike = {"draft": draft, "assistant": assistant, "max_tokens": 4, "both_ways": False}
    found = await advise(questions.values(), methods=["switch"], **alike)  # type: ignore[arg-type]
    assert (found.tested, found.audited) == (60, 0)
    before = draft.requests + assistant.requests
    await advise(questions.values(), methods=["cosd"], **alike)  # type: ignore[arg-type]
    assert draft.requests + assistant.requests - before <= 2 * 60 + 3 * audited


async def test_lines_after_each_look() -> None:
    told: list[str] = []
    questions = in_turn(("both", "neither", "fixed", "spoilt", "spoilt", "spoilt"), 120)
    draft, assistant = pair(questions)
    options: dict[str, Any] = {"methods": ("cosd", "cosd-1-1", "average"), "max_tokens": 4, "noted": told.append}
    await advise(questions.values(), draft=draft, assistant=assistant, worth=0.001, **options)
    assert (
        told[0].startswith("[30 of 120] 5 of 5 ways are left. ") and "questions had equal texts: not asked." in told[0]
    )
    assert re.match(r"\[60 of 120\] \d of 5 ways are left( \([\w, -]+ dropped\))?\. ", told[1])


async def test_looks_are_kept_and_spent_once(tmp_path: Path) -> None:
    """A repeated run makes no look of its own; an enlarged file one, with half of what is kept; new ways count."""
    path = tmp_path / "answers.jsonl"
    kinds = ("both", "neither", "draft", "fixed", "spoilt", "spoilt")
    questions = [*in_turn(kinds, 60).values()]
    draft, assistant = pair(in_turn(kinds, 60))
    options: dict[str, Any] = {"draft": draft, "assistant": assistant, "max_tokens": 4, "path": path, "worth": 0.001}
    found = await advise(questions[:40], methods=["cosd"], **options)
    looks = [json.loads(line) for line in path.read_text().splitlines() if '"type":"look"' in line]
    assert [len(one["questions"]) for one in looks] == [10, 10, 20]
    assert [one["spent"] for one in looks] == pytest.approx([0.003, 0.007, 0.03])
    assert [*looks[0]] == ["type", "questions", "ways", "spent", "of"] and looks[0]["of"] == 40
    before, requests = path.read_bytes(), draft.requests + assistant.requests
    again = await advise(questions[:40], methods=["cosd"], **options)
    assert (path.read_bytes(), draft.requests + assistant.requests) == (before, requests)
    assert (again.decision, again.gain, again.looks) == (found.decision, found.gain, 3)
    assert again.notes == (
        (
            "all looks at these questions have been made: the next one needs 60 questions, or another file for the "
            "answers and other questions"
        ),
    )
    more = await advise(questions, methods=["cosd", "cosd-1-1"], **options)
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["type"], len(last["questions"]), last["spent"]) == ("look", 20, pytest.approx(0.005))
    assert {"cosd-1-1", "cosd-1-1, reversed"} <= {*last["ways"]}
    assert (more.tried, more.looks, more.tested) == (4, 4, 60)
    fewer = await advise(questions, methods=["average"], **options)
    assert (fewer.tried, fewer.looks) == (5, 4)  # those of earlier runs count


async def test_prompts_that_repeat_without_a_group_are_noted() -> None:
    questions = [*asked("complementary").values()]
    draft, assistant = pair(asked("complementary"))
    twin = Example(prompt=questions[0].prompt, answer=" x")
    options: dict[str, Any] = {"draft": draft, "assistant": assistant, "methods": METHODS, "max_tokens": 4}
    found = await advise([*questions, twin], **options)
    assert found.notes[0].startswith("2 questions share their prompt with another one and have no group: each counts")
    same = {"group": "one"}
    grouped = [questions[0].model_copy(update=same), *questions[1:], twin.model_copy(update=same)]
    assert (await advise(grouped, **options)).notes == ()


async def test_choosing_is_deprecated_and_changes_nothing() -> None:
    plain, *_ = await advice_on("complementary")
    with pytest.warns(DeprecationWarning, match=re.escape("advise(choosing=...) is without effect, as all questions")):
        found, *_ = await advice_on("complementary", choosing=0.3)
    assert (found.tested, found.gain) == (plain.tested, plain.gain)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"worth": 0}, "worth must be a number between 0.001 and 1, not 0"),
        ({"looks": "never"}, 'looks must be "auto" or "end", not \'never\''),
    ],
)
async def test_invalid_settings(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=re.escape(words)):
        await advice_on("copy", **more)


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
    assert found.billed_tokens < 0.6 * whole.billed_tokens
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
    assert (found.decision, found.tested, found.looks) == ("fuse", whole.questions, 1)
    assert found.bills["fused"].billed == whole["cosd"].billed
    with pytest.raises(SettingError, match="worth must be a number between"):
        whole.advice(worth=0)
    with pytest.warns(DeprecationWarning, match=re.escape("Comparison.advice(choosing=...)")):
        assert whole.advice(choosing=0.4) == found


async def test_ways_with_the_same_texts_share_a_row() -> None:
    questions = asked("complementary", 20)
    draft, assistant = pair(questions)
    found = await compare(questions.values(), draft=draft, assistant=assistant, methods=METHODS, max_tokens=4)
    first, *_ = [one for one in found.standings if one.kind == "method" and one.same_texts_as is None]
    others = [one for one in found.standings if one.same_texts_as == first.name]
    bills = "; ".join(f"{one.name} ({one.billed:,.0f} tokens)" for one in others)
    words = f"{first.name} wrote the same texts as {bills}: they share a row, which has the numbers of {first.name}."
    assert others and words in " ".join(str(found).split())


async def test_a_comparison_advises_by_groups() -> None:
    questions = asked("complementary", 24)
    draft, assistant = pair(questions)
    grouped = [one.model_copy(update={"group": f"{at // 8}"}) for at, one in enumerate(questions.values())]
    options: Any = {"draft": draft, "assistant": assistant, "methods": ["cosd"], "max_tokens": 4, "development": 0}
    alone, together = [await compare(several, **options) for several in (questions.values(), grouped)]
    assert (alone.clusters, together.clusters, alone["cosd"].right) == (alone.questions, 3, together["cosd"].right)
    assert (alone.advice().decision, together.advice().decision) == ("fuse", "undecided")  # three clusters show nothing


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


async def test_the_estimate_is_confirmed_once(tmp_path: Path) -> None:
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
    assert found.tested == 20 and estimate.later is not None
    assert (estimate.questions, estimate.answers) == (40, 40 * 6)
    assert estimate.billed_tokens.low <= found.billed_tokens <= estimate.billed_tokens.high
    assert estimate.later.low == 0 < estimate.later.expected < estimate.later.high
    assert estimate.money is not None and estimate.money[0] < estimate.money[1] < estimate.money[2]
    assert re.search(r"; [\d,]+ of them \(at least 0(, at most [\d,]+)?\) after the first look", str(estimate))
    again = {"draft": draft, "assistant": assistant, "methods": METHODS, "max_tokens": 4, **more}
    before = draft.requests
    assert (await advise(questions.values(), **again)).gain == found.gain
    assert seen[1].known == 20 * 6 and draft.requests == before


async def test_it_is_unknown_where_it_was_stopped() -> None:
    found, *_ = await advice_on("complementary", max_billed_tokens=30)
    assert (found.decision, found.way) == ("unknown", None)
    assert str(found).startswith("No advice yet: max_billed_tokens=30 is reached")
    found, *_ = await advice_on("complementary", confirm=lambda _: False)
    assert str(found) == "No advice yet: it was not confirmed."


async def test_too_few_questions_are_refused() -> None:
    with pytest.raises(SettingError, match="advice needs at least 20 questions, preferably a hundred, not 3"):
        await advise([*asked("copy").values()][:3], draft="http://a", assistant="http://b")
