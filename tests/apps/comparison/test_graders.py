"""Graders by name, and what each of them calls right."""

from __future__ import annotations

import doctest
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Example, GradingError, SettingError
from cosd_api.apps.comparison.graders import (
    GRADERS,
    Grader,
    check_grader,
    grader_named,
    group_of,
    last_number,
    letter,
    normalized,
    repeated_prompts,
)


def example(answer: str, **more: Any) -> Example:
    return Example(prompt="Q", answer=answer, **more)


async def right(name: str, text: str, answer: str, settings: dict[str, Any] | None = None, **more: Any) -> bool:
    grader = grader_named(name, **(settings or {}))
    one = example(answer, **more)
    grader.check(one)
    return await grader(one, text)


@pytest.mark.parametrize(
    ("text", "answer", "more", "verdict"),
    [
        ("Lima", " Lima", {}, True),
        (" Lima \n", "Lima", {}, True),
        ("lima", "Lima", {}, False),
        ("Lima.", "Lima", {}, False),
        ("Lima, and more", "Lima", {"ends": False}, True),
        ("Limassol", "Lima", {"ends": False}, False),
        ("Lima", "It is Lima.", {"target": "Lima"}, False),  # the whole answer, whatever the target is
    ],
)
async def test_exact(text: str, answer: str, more: dict[str, Any], verdict: bool) -> None:
    assert await right("exact", text, answer, **more) is verdict


async def test_case_is_ignored_on_request() -> None:
    assert await right("exact", "LIMA", "Lima", {"ignore_case": True})
    assert await right("contains", "It is LIMA.", "Lima", {"ignore_case": True})
    assert grader_named("exact", ignore_case=True).name == "exact, any case"
    assert grader_named("contains", ignore_case=True).name == "contains, any case"


@pytest.mark.parametrize(
    ("text", "answer", "more", "verdict"),
    [
        ("The capital is Lima.", " Lima", {}, True),
        ("Limassol", "Lima", {}, False),
        ("lima", "Lima", {}, False),
        ("it is 42 in all", "The total is 42.", {"target": "42"}, True),
        ("it is 421", "The total is 42.", {"target": "42"}, False),
    ],
)
async def test_contains(text: str, answer: str, more: dict[str, Any], verdict: bool) -> None:
    assert await right("contains", text, answer, **more) is verdict


async def test_a_last_number_is_compared() -> None:
    assert await right("last-number", "3 + 4 = 7, so $1,007.00", " #### 1007")
    assert not await right("last-number", "1007 or 1008", "1007")
    assert not await right("last-number", "none", "1007")
    assert await right("last-number", "it is 5", "17 apples", target="5")


async def test_choice() -> None:
    options = ("Lima", "Quito")
    assert await right("choice", "The answer is B", " B")
    assert await right("choice", "(b)", "Quito", choices=options)
    assert await right("choice", "It is Quito.", "B", choices=options)
    assert not await right("choice", "A", "B", choices=options)
    assert not await right("choice", "I do not know", "B")


async def test_a_command_of_the_users_own(tmp_path: Path) -> None:
    script = tmp_path / "grade.py"
    script.write_text(
        "import json, sys\n"
        "given = json.load(sys.stdin)\n"
        "if given['text'] == 'odd': sys.exit('first line\\nit is odd')\n"
        "if given['text'] == 'slow': import time; time.sleep(60)\n"
        "sys.exit(given['answer'] not in given['text'])\n"
    )
    settings: dict[str, Any] = {"command": f"{sys.executable} {script}"}
    assert await right("command", "it is Lima", "Lima", settings)
    assert not await right("command", "it is Quito", "Lima", settings)
    with pytest.raises(GradingError, match=r"exited with 3, not with 0 or 1, and said: nothing"):
        await right("command", "x", "x", {"command": f"{sys.executable} -c 'raise SystemExit(3)'"})
    with pytest.raises(GradingError, match=r"grade.py takes longer than 0.5 s"):
        await right("command", "slow", "x", {**settings, "time_limit": 0.5})
    with pytest.raises(GradingError, match=r"command no_such_program cannot be started: No such file or directory"):
        await right("command", "x", "x", {"command": "no_such_program"})


@given(
    st.sampled_from(["exact", "contains", "last-number", "choice"]), st.text(st.characters(codec="utf-8"), max_size=30)
)
async def test_graders_take_any_text(name: str, text: str) -> None:
    assert await right(name, text, " B 12") in (True, False)


@pytest.mark.parametrize("name", ["exact", "contains", "last-number", "choice"])
async def test_the_reference_itself_is_right(name: str) -> None:
    answer = {"choice": " B"}.get(name, " The total is 12.")
    assert await right(name, answer, answer)


@pytest.mark.parametrize(
    ("name", "settings", "one", "words"),
    [
        ("last-number", {}, example("Lima"), "last-number needs a reference with a number, and this one has none"),
        ("choice", {}, example("Lima"), r"choice needs the letter of an option .*: write the letter, or give the opt"),
        ("choice", {}, example("E", choices=("a", "b")), "a letter from A to B, or the text of a choice"),
        ("contains", {}, example("  "), "contains looks for a text, but this answer is only white space"),
    ],
)
def test_an_example_without_what_a_grader_needs(name: str, settings: Any, one: Example, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        grader_named(name, **settings).check(one)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("last_number", {}, "no grader is named 'last_number'; did you mean 'last-number'"),
        ("zzz", {}, "no grader is named 'zzz'; known are exact, contains, last-number, .*, and module:function"),
        ("exact", {"command": "a"}, "command is a setting of the grader command, not of exact"),
        ("command", {}, "the grader command needs a command, such as command='python grade.py'"),
        ("command", {"command": "a", "time_limit": 0}, "time_limit must be a number above 0, not 0"),
        ("nowhere_at_all:f", {}, "the grader nowhere_at_all:f cannot be imported: No module named"),
        ("math:zzz", {}, "the grader math:zzz cannot be imported: .* has no attribute 'zzz'"),
        ("math:pi", {}, "the grader math:pi is not a function of an example and a text"),
    ],
)
def test_refusals(name: str, settings: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        grader_named(name, **settings)


async def test_functions_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_graders.py").write_text(
        "def plain(example, text): return example.answer in text\n"
        "async def slow(example, text): return example.answer not in text\n"
        "def wrong(example, text): return 'yes'\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert await right("own_graders:plain", "it is Lima", "Lima")
    assert not await right("own_graders:slow", "it is Lima", "Lima")
    with pytest.raises(
        GradingError, match="own_graders:wrong returned str: return True for a right answer, else False"
    ):
        await right("own_graders:wrong", "a", "b")
    assert sys.path == before and grader_named("own_graders:plain").name == "own_graders:plain"


async def test_what_is_given_becomes_a_grader() -> None:
    def shout(one: Example, text: str) -> bool:
        return text.isupper()

    grader = check_grader(shout)
    assert isinstance(grader, Grader) and grader.name.endswith("shout")
    assert await grader(example("x"), "X")
    assert check_grader(grader) is grader and check_grader("exact").name == "exact"
    for wrong in (None, 3, Grader):
        with pytest.raises(SettingError, match="grader must be a name such as last-number, a grader, or a function"):
            check_grader(wrong)


def test_the_page_about_graders() -> None:
    page = Path(__file__).parents[3] / "docs" / "graders.md"
    text = page.read_text(encoding="utf-8")
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted >= 6 and not found.failed
    assert [name for name in GRADERS if f"| `{name}` |" not in text] == []
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    sums, city = (Example.model_validate_json(line) for line in block.splitlines())
    grader_named("last-number").check(sums)
    grader_named("choice").check(city)


def test_every_grader_of_the_list_is_there() -> None:
    needed: dict[str, dict[str, Any]] = {
        "command": {"command": "true"},
    }
    for name in GRADERS:
        grader = grader_named(name, **needed.get(name, {}))
        assert isinstance(grader, Grader) and grader.name.startswith(name)


# Values in texts.


def test_normalized_texts_differ_in_neither_spaces_nor_accents() -> None:
    assert normalized(" Bogota\u0301 \n\t is\u00a0here ") == "Bogotá is here"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The total is 42.", "42"),
        ("#### 1,234,567.50", "1234567.5"),
        ("It costs $1,000.00!", "1000"),
        ("-$3.50", "-3.5"),
        ("5-3", "3"),
        ("5 - 3", "3"),
        ("x = -3", "-3"),
        ("(2)-1", "1"),
        ("\u22127", "-7"),
        ("−0.0", "0"),
        ("+4", "4"),
        ("１２ units", "12"),
        (".5", "0.5"),
        ("007", "7"),
        ("50%", "50"),
        ("3e3", "3000"),
        ("1.5E-3", "0.0015"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("1.2.3", "3"),
        ("3 eggs", "3"),
        ("答案是42。", "42"),
        ("between 1 and 10, then 20", "20"),
        ("1e9999", "9999"),
        ("The area is 25 cm².", "25"),
        ("25 m³", "25"),
        ("25 cm^2", "25"),
        (r"$25 \text{ cm}^{2}$", "25"),
        ("42¹ and CO₂", "42"),
        ("USD50", "50"),
        ("2^3 = 8", "8"),
        ("in 3 days", "3"),
        ("room m4", "4"),
        ("٤٢", "42"),
        ("no number", None),
        ("", None),
        ("...", None),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


def test_a_digit_that_this_python_does_not_know_is_none() -> None:
    """Python 3.14 knows this one, of Unicode 16."""
    assert last_number("4 or \U00010d41") in ("4", "1")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_every_spelling_of_a_number_is_read_alike(number: Decimal) -> None:
    spellings = {
        last_number(f"so {spelling} apples.") for spelling in (f"{number:f}", f"{number:,f}", f"{number:f}000")
    }
    assert len(spellings) == 1 and Decimal(spellings.pop() or "nan") == number


def test_a_long_number_is_read_whole() -> None:
    assert len(last_number("9" * 5000) or "") == 5000


OPTIONS = ("Lima", "Quito", "New Lima", "La Paz")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" B", "B"),
        ("B.", "B"),
        ("(b)", "B"),
        ("b", "B"),
        ("**C**", "C"),
        ("C because Peru", "C"),
        ("B) Quito", "B"),
        ("D\n\nQuestion: what", "D"),
        ("A", "A"),
        ("A: Lima", "A"),
        ("A city in Peru", None),
        ("I think (C) is right", "C"),
        ("I think (C) or (D)", None),
        ("The answer is B", "B"),
        ("The answer is (b).", "B"),
        ("Answer: **D**", "D"),
        ("First I said the answer is A. No: the answer is C.", "C"),
        ("A is wrong, so the answer is B", "B"),
        ("The answer is A or B", None),
        ("A and B", None),
        ("A, B", None),
        ("The answer is a city", None),
        ("Quito, of course", "B"),
        ("It is new lima!", "C"),
        ("Lima or Quito", None),
        ("The answer is Z", None),
        ("E", None),
        ("", None),
    ],
)
def test_letter_of_a_choice(text: str, found: str | None) -> None:
    assert letter(text, OPTIONS) == found


def test_letters_without_known_choices() -> None:
    assert letter("The answer is Z") == "Z"
    assert letter("Quito") is None


# Questions.

ONE = Example(prompt="Q", answer="a")


def test_a_group_is_no_part_of_a_question() -> None:
    assert ONE.model_copy(update={"group": "facts"}).key == ONE.key


def test_questions_belong_together_by_their_group_alone() -> None:
    several = [ONE, Example(prompt="R", answer="a", group="f"), Example(prompt="S", answer="b", group="f")]
    assert [group_of(one) for one in several] == [ONE.key, "group f", "group f"]


def test_prompts_that_repeat_without_a_group_are_counted() -> None:
    several = [ONE, Example(prompt="Q", answer="b"), Example(prompt="R", answer="b")]
    assert repeated_prompts(several) == 2
    assert repeated_prompts([*several, Example(prompt="R", answer="c", group="f")]) == 2
    assert repeated_prompts([Example(prompt="Q", answer=text, group="f") for text in "abc"]) == 0
