"""The result of `compare`: `Comparison`, with the standing of each contestant."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cosd_api import __version__
from cosd_api.comparison.advice import WORTH, Advice, advice_on
from cosd_api.comparison.contestants import ORACLE, LeftOut, model_names
from cosd_api.comparison.contrasts import ThirdModel
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.questions import group_of
from cosd_api.comparison.report import comparison_report
from cosd_api.comparison.standings import (
    FailedAnswer,
    Gathered,
    ModelCalibration,
    Standing,
    calibration_of,
    counted_by,
    judged,
)
from cosd_api.extend import Record, Unit, check_between
from cosd_api.types import Endpoint


class Comparison(Record):
    """A comparison of two or more models alone, every way to fuse them, and baselines, all on the same questions.

    All standings are measured on the test questions. The settings of two baselines, the random gate and
    self-consistency, depend on answers. They are determined on development questions, which are held out from the test:
    the questions with the smallest hashes (`Example.key`), a share of all questions, but at least one.

    Attributes:
        schema_version: version of this format. Version 1 compared every contestant with one model only, and this model
            was chosen on the development questions. When a result of version 1 is read, all differences are computed
            from its answers.
        draft: the draft endpoint, as the user gave it.
        assistant: the assistant endpoint, or the first of several.
        more_assistants: the other assistant endpoints.
        questions: number of test questions.
        groups: the group (`Example.group`) of each question that has one, keyed by the question's key.
        development: keys (`Example.key`) of the development questions, which set the baselines.
        better: the model with the most right answers to the test questions that all models have answered: `"draft"`,
            `"assistant"` or, with several assistants, a name such as `"assistant 1"`. Ties go to the model that billed
            fewer tokens, then to the draft. The `differences` in its standing tell whether it is significantly better
            than the other models.
        third: for three models, the comparison that tells whether the third model is worth its price; None if no ways
            to fuse only two of the models were compared.
        grader: name of the grader.
        max_tokens: maximum number of tokens in each answer.
        stop: stop strings; an answer ended before the first one that would have appeared in it.
        seed: seed for random draws.
        unit: the unit, as it was given.
        standings: standings of all contestants: first the models, then the oracle, the ways to fuse and the other
            baselines.
        left_out: contestants that could not be compared, with the reasons.
        calibration: calibration of each model, keyed by name; models whose probabilities are not reported are absent.
        stopped: the reason why the comparison is not complete; None if it is complete.
        billed_tokens: tokens billed for this comparison, including earlier runs with the same journal.
        spent_tokens: tokens billed in this run only.
        answers: all answers, including those to the development questions.
        failures: the questions that failed, with the reasons.
        warnings: warnings about the comparison.
        library_version: version of cosd-api.
    """

    schema_version: Literal[2] = 2
    draft: Endpoint
    assistant: Endpoint
    more_assistants: tuple[Endpoint, ...] = ()
    questions: int
    groups: dict[str, str] = Field(default_factory=dict[str, str])
    development: tuple[str, ...]
    better: str
    third: ThirdModel | None = None
    grader: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    unit: Unit | None = None
    standings: tuple[Standing, ...]
    left_out: tuple[LeftOut, ...] = ()
    calibration: dict[str, ModelCalibration] = Field(default_factory=dict[str, ModelCalibration])
    stopped: str | None = None
    billed_tokens: int = 0
    spent_tokens: int = 0
    answers: tuple[GradedAnswer, ...] = ()
    failures: tuple[FailedAnswer, ...] = ()
    warnings: tuple[str, ...] = ()
    library_version: str = __version__

    @model_validator(mode="before")
    @classmethod
    def _of_version_1(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        given = cast("Mapping[str, Any]", data)
        return _renewed(given) if given.get("schema_version") == 1 else given

    @property
    def models(self) -> dict[str, Endpoint]:
        """All endpoints, keyed by the names under which the models alone are contestants."""
        several = (self.draft, self.assistant, *self.more_assistants)
        return dict(zip(model_names(len(several)), several, strict=True))

    @property
    def clusters(self) -> int:
        """Number of independent clusters of questions: each group, and each question without a group, is a cluster."""
        return self.questions - len(self.groups) + len({*self.groups.values()})

    def __getitem__(self, name: str) -> Standing:
        """The standing of a contestant.

        Raises:
            KeyError: no contestant has this name.
        """
        if (found := standing_of(self, name)) is not None:
            return found
        names = ", ".join(one.name for one in self.standings)
        raise KeyError(f"no contestant is named {name!r}; there are {names}")

    def __str__(self) -> str:
        return comparison_report(self)

    def advice(self, *, worth: float = WORTH) -> Advice:
        """Derive from these answers whether to fuse the models, and how.

        Args:
            worth: the smallest gain in accuracy that makes fusing worthwhile, from 0.001 to 1; see `Advice`.

        Raises:
            SettingError: `worth` is invalid.
        """
        check_between("worth", worth, 0.001, 1)
        return advice_on(self, worth)

    def answers_of(self, name: str, *, development: bool = False) -> dict[str, GradedAnswer]:
        """Map questions to a contestant's complete answers, for the test questions or the development questions."""
        held = set(self.development)
        return {
            one.question: one
            for one in self.answers
            if one.contestant == name and one.complete and (one.question in held) == development
        }


def comparison_of(gathered: Gathered, **fields: Any) -> Comparison:
    """Make a comparison from the answers in `gathered`; `fields` are the fields that do not follow from the answers."""
    found = judged(gathered)
    if fields.get("stopped") is None:
        lost = [one.name for one in found.standings if one.asked != len(gathered.test)]
        assert not lost, f"complete, but not all questions of {', '.join(lost)} were answered or failed"
    held = {one.key for one in gathered.development}
    return Comparison(
        questions=len(gathered.test),
        groups={one.key: group_of(one) for one in gathered.test if one.group is not None},
        development=tuple(one.key for one in gathered.development),
        better=found.better,
        third=found.third,
        standings=tuple(found.standings),
        calibration=calibration_of(gathered),
        failures=tuple(
            FailedAnswer(contestant=name, question=key, error=words, development=key in held)
            for name, why in gathered.failed.items()
            for key, words in why.items()
        ),
        answers=tuple(
            by[one.key]
            for one in [*gathered.development, *gathered.test]
            for by in gathered.answers.values()
            if one.key in by
        ),
        **fields,
    )


def _renewed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a comparison's fields from version 1 to this version: use its answers to compute the differences.

    A comparison that is part of an `Advice` contains no answers, so it gets no differences.
    """
    held = {*given["development"]}
    standings = [
        Standing.model_validate(one)
        for one in given["standings"]
        if one["kind"] != "derived" or one["name"] == ORACLE  # version 1 had a derived copy of a model's row
    ]
    found = {**given, "schema_version": 2, "standings": standings}
    answers = [GradedAnswer.model_validate(one) for one in given.get("answers", ())]
    if not answers:
        return found
    by: dict[str, dict[str, GradedAnswer]] = {}
    for one in answers:
        if one.complete and one.question not in held:
            by.setdefault(one.contestant, {})[one.question] = one
    failed: dict[str, set[str]] = {}
    for why in given.get("failures", ()):
        lost = FailedAnswer.model_validate(why)
        if not lost.development:
            failed.setdefault(lost.contestant, set()).add(lost.question)
    models = model_names(2 + len(given.get("more_assistants", ())))
    questions = [*dict.fromkeys(chain.from_iterable([*by.values(), *failed.values()]))]
    made = counted_by(standings, models, questions, by, failed, {})
    return {**found, "answers": answers, "standings": made.standings, "better": made.better}


def standing_of(found: Comparison, name: str) -> Standing | None:
    """The standing of a contestant; None if no contestant has this name."""
    return next((one for one in found.standings if one.name == name), None)
