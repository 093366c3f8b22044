"""Questions of a comparison: those that belong together, and what a group changes."""

from __future__ import annotations

from pathlib import Path

from cosd_api import Example
from cosd_api.comparison.journal import grading_key
from cosd_api.comparison.questions import group_of, questions_by_key, read_questions, repeated_prompts

ONE = Example(prompt="Q", answer="a")


def test_a_group_is_no_part_of_a_question() -> None:
    grouped = ONE.model_copy(update={"group": "facts"})
    assert (grouped.key, grading_key(grouped, "exact")) == (ONE.key, grading_key(ONE, "exact"))
    assert [*questions_by_key([ONE, grouped]).values()] == [ONE]
    twins = [one.model_copy(update={"target": "b"}) for one in (ONE, grouped)]
    assert len({*questions_by_key([ONE, twins[0]]), *questions_by_key([ONE, twins[1]])}) == 2


def test_questions_belong_together_by_their_group_alone() -> None:
    several = [ONE, Example(prompt="R", answer="a", group="f"), Example(prompt="S", answer="b", group="f")]
    assert [group_of(one) for one in several] == [ONE.key, "group f", "group f"]


def test_prompts_that_repeat_without_a_group_are_counted() -> None:
    several = [ONE, Example(prompt="Q", answer="b"), Example(prompt="R", answer="b")]
    assert repeated_prompts(several) == 2
    assert repeated_prompts([*several, Example(prompt="R", answer="c", group="f")]) == 2
    assert repeated_prompts([Example(prompt="Q", answer=text, group="f") for text in "abc"]) == 0


def test_a_group_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "Q", "answer": "a", "fact": 7}')
    assert [one.group for one in read_questions(path, {"group": "fact"})] == ["7"]
