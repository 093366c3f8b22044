"""Answers that are known: whose text a question has in the journal, and with which grade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cosd_api.comparison.answers import GradedAnswer
from cosd_api.comparison.contestants import Contestant
from cosd_api.comparison.grades import grading_key
from cosd_api.comparison.grading import Grader
from cosd_api.comparison.journal import Journal
from cosd_api.comparison.settings import ComparisonSettings
from cosd_api.training.dataset import Example

__all__ = ["Known"]


@dataclass(frozen=True)
class Known:
    """The answers of a journal, by contestant and question.

    Questions with one prompt have one text, and each its own grade.

    Attributes:
        journal: the journal.
        judge: the grader.
        models: the models' names on their servers: the draft, then the assistants.
        settings: of the run.
    """

    journal: Journal
    judge: Grader
    models: Sequence[str]
    settings: ComparisonSettings
    _keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str], init=False)

    def key(self, one: Contestant, example: Example) -> str:
        """Identity of the text of a contestant's answer."""
        if (known := self._keys.get((one.name, example.key))) is not None:
            return known
        prompt = example.model_dump(mode="json", include={"prompt"})
        limits = self.settings
        drawn = limits.seed if one.method is not None and one.method.temperature else None
        made = one.key([*self.models], limits.max_tokens, [*limits.stop], drawn, limits.unit, prompt)
        self._keys[one.name, example.key] = made
        return made

    def answer(self, one: Contestant, example: Example) -> GradedAnswer | None:
        """The contestant's answer as far as it is known, graded or not."""
        key = self.key(one, example)
        found = self.journal.answers.get(key)
        if found is None:
            return None
        grading = grading_key(self.judge, example)
        own = {"contestant": one.name, "question": example.key, "graded": grading}
        return found.model_copy(update={**own, "right": self.journal.grades[key].get(grading)})

    def answers(self, one: Contestant, questions: Sequence[Example]) -> dict[str, GradedAnswer]:
        """The answers of a contestant to these questions, graded or not, by question."""
        several = ((example.key, self.answer(one, example)) for example in questions)
        return {key: answer for key, answer in several if answer is not None}

    def complete(self, one: Contestant, questions: Sequence[Example]) -> dict[str, GradedAnswer]:
        """The complete answers of a contestant to these questions, by question."""
        return {key: answer for key, answer in self.answers(one, questions).items() if answer.complete}

    def missing(self, one: Contestant, questions: Sequence[Example]) -> list[Example]:
        """The questions that the contestant has no text for."""
        return [example for example in questions if not self.has(one, example)]

    def has(self, one: Contestant, example: Example) -> bool:
        """Test whether there is a text, graded or not."""
        return self.key(one, example) in self.journal.answers
