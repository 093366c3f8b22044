"""Grades: what they are known by, and texts that are graded again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosd_api import Example, GradingError
from cosd_api.comparison.graders import FunctionGrader
from cosd_api.comparison.grades import graded, grading_key, regrade
from cosd_api.comparison.journal import GradedAnswer, Journal, JournalHeader
from cosd_api.records import Endpoint

ASKED = Example(prompt="Q", answer=" r")


class Kept(FunctionGrader):
    """A function with an identity."""

    @property
    def identity(self) -> str:
        return "kept"


def answer(**more: object) -> GradedAnswer:
    fields = {"key": "k", "graded": "g", "contestant": "draft", "question": ASKED.key, "text": " r", **more}
    return GradedAnswer.model_validate(fields)


async def test_a_grader_that_cannot_tell_says_why_and_a_fault_of_its_own_is_raised() -> None:
    def fails(example: Example, text: str) -> bool:
        raise GradingError("no idea")

    def broken(example: Example, text: str) -> bool:
        raise KeyError("oops")

    found = await graded(FunctionGrader(fails), answer(), ASKED)
    assert (found.right, found.error) == (None, "it was not graded: no idea")
    with pytest.raises(KeyError) as caught:
        await graded(FunctionGrader(broken, "mine"), answer(), ASKED)
    assert caught.value.__notes__ == ["when the grader mine read the answer of 'draft'"]


@pytest.mark.parametrize("kind", [FunctionGrader, Kept])
async def test_only_the_grades_of_a_grader_with_an_identity_are_kept(
    tmp_path: Path, kind: type[FunctionGrader]
) -> None:
    ends = [Endpoint(name=one, endpoint="", engine="", model=one) for one in ("draft", "assistant")]
    header = JournalHeader(draft=ends[0], assistant=ends[1])
    judge = kind(lambda example, text: False, "mine")
    right = answer(right=True, graded=grading_key(judge, ASKED))
    with Journal(tmp_path / "a.jsonl", header) as journal:
        for one in (right, answer(key="other", question="not asked", right=True)):
            journal.add(one.model_copy(update={"right": None}))
            journal.grade(one)
    with Journal(tmp_path / "a.jsonl", header, regrade=kind is FunctionGrader) as journal:
        await regrade(journal, judge, [ASKED], 2)
        assert journal.grades["k"] == {right.graded: kind is Kept}
        assert journal.grades["other"] == ({"g": True} if kind is Kept else {})
        assert journal.billed == 0
