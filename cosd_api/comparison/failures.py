"""Failures of a run: of which questions, and whether so many in a row say that a server is down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Failures"]

_IN_A_ROW = 8
"""Answers that fail one after the other before a comparison stops: a server is down."""
_QUESTIONS = 3
"""Different questions among them, at least: one that nobody can take fails for every contestant."""


@dataclass
class Failures:
    """Questions that failed, and rows of failures that one endpoint, or the grader, may be to blame for."""

    _why: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])  # by contestant, by question
    _rows: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # questions, by who may be to blame

    def add(self, contestant: str, question: str, words: str, who: Sequence[str]) -> str | None:
        """Note a failure that each of `who` may be to blame for; returns why the run is over, if it is."""
        self._why.setdefault(contestant, {})[question] = words
        rows = [self._rows.setdefault(name, []) for name in who]
        for row in rows:
            row.append(question)
        if any(len(row) >= _IN_A_ROW and len({*row}) >= _QUESTIONS for row in rows):
            return f"{_IN_A_ROW} answers in a row have failed, the last one with: {words}"
        return None

    def works(self, who: str) -> None:
        """Note that an endpoint, or the grader, has answered."""
        self._rows[who] = []

    def forget(self, contestant: str) -> None:
        """Forget what a contestant failed at, which is left out."""
        self._why.pop(contestant, None)

    def of(self, questions: set[str]) -> Mapping[str, Mapping[str, str]]:
        """Reasons why these questions failed, by contestant and question."""
        return {name: {key: why[key] for key in why if key in questions} for name, why in self._why.items()}
