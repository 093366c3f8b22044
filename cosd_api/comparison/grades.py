"""Grades of answers: given, known again by the grader and the example, and given again where nobody keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cosd_api.comparison.grading import Grader, identity_of
from cosd_api.comparison.journal import GradedAnswer, Journal, graded_key
from cosd_api.errors import GradingError
from cosd_api.training.dataset import Example
from cosd_providers.concurrency import concurrently
from cosd_providers.errors import ProviderError

__all__ = ["graded", "grading_key", "regrade"]


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


async def regrade(journal: Journal, judge: Grader, questions: Sequence[Example], concurrency: int) -> None:
    """Grade the known texts to these questions, where the grader keeps no grades."""
    if identity_of(judge) is not None:
        return
    examples = {example.key: example for example in questions}

    async def grade(answer: GradedAnswer, example: Example) -> None:
        found = await graded(judge, answer.model_copy(update={"graded": grading_key(judge, example)}), example)
        if found.right is not None:
            journal.grade(found)

    known = [answer for answer in journal.answers.values() if answer.question in examples]
    await concurrently([partial(grade, answer, examples[answer.question]) for answer in known], concurrency)
