"""One run: the grade of an answer, and graders that fail."""

from __future__ import annotations

import pytest

from cosd_api import Example, GradingError
from cosd_api.comparison.graders import FunctionGrader
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.run import graded

ASKED = Example(prompt="Q", answer=" r")


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
