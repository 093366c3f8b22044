"""Grades of answers: given, and known again by the grader and the example."""

from __future__ import annotations

from cosd_api.comparison.answers import GradedAnswer
from cosd_api.comparison.grading import Grader, identity_of
from cosd_api.comparison.journal import graded_key
from cosd_api.errors import GradingError
from cosd_api.training.dataset import Example
from cosd_providers.errors import ProviderError

__all__ = ["graded", "grading_key"]


def grading_key(judge: Grader, example: Example) -> str:
    """Identity of a grading of an answer to this question."""
    return graded_key(example, identity_of(judge) or judge.name)


async def graded(judge: Grader, answer: GradedAnswer, example: Example) -> GradedAnswer:
    """The answer with its grade; without one, and with the reason, where the grader failed."""
    try:
        right = await judge(example, answer.text)
    except (GradingError, ProviderError) as error:
        return answer.model_copy(update={"right": None, "error": f"it was not graded: {error}"})
    except Exception as error:
        error.add_note(f"when the grader {judge.name} read the answer of {answer.contestant!r}")
        raise
    return answer.model_copy(update={"right": bool(right), "error": None})
