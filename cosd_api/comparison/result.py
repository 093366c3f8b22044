"""Results of `compare` and `advise`: `Comparison`, with the standing of each contestant, and `Advice`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from textwrap import fill
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cosd_api import Fusion, SettingError, __version__
from cosd_api.comparison.advice import AdviceCounts, Bill, Doubts, advice_words, reasoned
from cosd_api.comparison.contestants import ORACLE, Contestant, LeftOut, method_of, model_names
from cosd_api.comparison.contrasts import ThirdModel
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.looks import WORTH, Outcomes, SequentialTest, in_order, looked_at, schedule
from cosd_api.comparison.prices import Price
from cosd_api.comparison.questions import group_of
from cosd_api.comparison.report import WIDTH, comparison_report
from cosd_api.comparison.standings import (
    FailedAnswer,
    Gathered,
    ModelCalibration,
    Standing,
    calibration_of,
    counted_by,
    judged,
)
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import (
    AnswerOptions,
    Record,
    Unit,
    check_between,
    outdated,
    with_article,
)
from cosd_api.types import Endpoint
from cosd_providers import Provider, connect


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

    def advice(self, *, worth: float = WORTH, choosing: float | None = None) -> Advice:
        """Derive from these answers whether to fuse the models, and how, with one look at all test questions.

        The function `advise` asks only as many questions as the decision needs.

        Args:
            worth: the smallest gain in accuracy that makes fusing worthwhile, from 0.001 to 1; see `Advice`.
            choosing: deprecated, and without effect.

        Raises:
            SettingError: there are fewer than 20 test questions, or `worth` is invalid.
        """
        if choosing is not None:
            outdated("Comparison.advice(choosing=...)", "without effect, as all questions choose and test,")
        check_between("worth", worth, 0.001, 1)
        outcomes, trial = outcomes_of(self), SequentialTest()
        if self.stopped is None:
            order = in_order(outcomes.questions)
            looked_at(outcomes, order, schedule(len(order), looks="end"), trial, worth)
        fused = trial.fused
        names = [*self.models]
        settings = {
            one.name: Contestant(one.name, "method", first=names.index(one.first) if one.first else int(one.reverse))
            for one in self.standings
            if one.kind == "method"
        }
        answers = {name: self.answers_of(name) for name in names}
        if fused is not None:
            answers["fused"] = self.answers_of(fused.way)
        facts = AdviceFacts(contestants=settings, answers=answers, questions=self.questions)
        return advice_of(self, outcomes, trial, worth, facts)

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


def outcomes_of(found: Comparison) -> Outcomes:
    """The outcomes of the models alone, and of the ways to fuse all models, on the test questions."""

    def right(name: str) -> dict[str, bool]:
        return {key: bool(one.right) for key, one in found.answers_of(name).items()}

    ways = [one.name for one in found.standings if one.kind == "method" and one.without is None]
    billed = {one.name: one.billed for one in found.standings if one.billed is not None}
    alone = {name: right(name) for name in found.models}
    return Outcomes(alone, {name: right(name) for name in ways}, billed, found.groups)


class Advice(AdviceCounts):
    """Advice on whether to fuse two or more models; `str(advice)` puts it into words.

    A test by sign flips compares every way to fuse with each model alone. If no way is better than the better model, at
    most 5 of 100 runs advise to fuse, whichever ways are tried and even if the file of questions grows. See
    `cosd_api.comparison.looks`.

    Attributes:
        schema_version: version of this format.
        decision: `"fuse"`; `"alone"` to use one model, because a gain of `worth` is excluded; `"undecided"` if the test
            shows neither; or `"unknown"` if the run was stopped before it could decide.
        model: the better model alone: `"draft"`, `"assistant"` or, with several assistants, a name such as `"assistant
            1"`.
        way: name of the advised way to fuse or, if none is advised, of the way that gains most so far; a comparison
            uses the same name.
        reverse: whether one of the given assistants should draft.
        first: the name of the model that should draft, if there are several assistants.
        settings: the method of the way to fuse, with its settings and its verifier.
        questions: number of questions that were given.
        tested: number of questions on which the decision is based; all models have answered them.
        tried: number of ways to fuse that were ever tried, including earlier runs with the same `path`.
        looks: number of looks.
        worth: the smallest gain in accuracy that makes fusing worthwhile.
        equal: number of questions that ways to fuse skipped, because all models wrote the same text.
        audited: number of answers that ways to fuse gave, as a check, to questions for which all models wrote the same
            text.
        disagreed: number of audited answers whose grade differs from the grade of the models' text.
        right: number of right answers to the `tested` questions, for the way to fuse (`"fused"`) and for each model
            alone.
        accuracy: share of right answers to the `tested` questions, with 95 % intervals, under the same names.
        gain: gain in accuracy over the better model. Its low end holds simultaneously for all ways and looks; its high
            end is the upper end of a 95 % interval. None before the first look.
        upper: upper bound of the gains of all ways to fuse, 2.5 standard errors above the gain.
        more: if `"undecided"`, the approximate number of further questions that would show the gain, or a gain of
            `worth`, in four of five runs.
        room: the share of the questions at which the models' texts differ and the better model is wrong. No way to fuse
            can gain more than this. None unless this share decided the run.
        ways: the results of every way to fuse at its last look, the best first.
        bills: mean cost of an answer, under the names in `right`.
        doubts: how often each model is unsure when it is wrong, keyed by the model's name.
        draft: the draft's endpoint, as given.
        assistant: the endpoint of the assistant, or of the first of several.
        more_assistants: the endpoints of the other assistants.
        grader: name of the grader.
        unit: the unit, as it was given.
        limits: limits of the measured answers; the settings file of the advised fusion contains them, too.
        seed: seed for random draws.
        left_out: contestants that the endpoints cannot serve.
        stopped: the reason why the advice is not complete; None if it is complete.
        billed_tokens: tokens billed for the advice, including earlier runs with the same `path`.
        notes: further notes about the advice.
        parts: the comparison that the advice is based on, without its answers. It contains the models alone, and may
            contain the ways to fuse.
        library_version: version of cosd-api.
    """

    draft: Endpoint
    assistant: Endpoint
    more_assistants: tuple[Endpoint, ...] = ()
    grader: str
    unit: Unit | None = None
    limits: dict[str, Any] = Field(default_factory=dict[str, Any])
    seed: int = 0
    left_out: tuple[LeftOut, ...] = ()
    stopped: str | None = None
    billed_tokens: int = 0
    notes: tuple[str, ...] = ()
    parts: tuple[Comparison, ...] = ()
    library_version: str = __version__

    def __str__(self) -> str:
        if self.decision == "unknown":
            return f"No advice yet: {self.stopped}."
        return advice_words(self, {name: one.model for name, one in self.models.items()}, self.order)

    @property
    def models(self) -> dict[str, Endpoint]:
        """All endpoints, keyed by the names of the models."""
        several = (self.draft, self.assistant, *self.more_assistants)
        return dict(zip(model_names(len(several)), several, strict=True))

    @property
    def order(self) -> list[str]:
        """The names of the models, in the order of the advised fusion."""
        names = [*self.models]
        return Contestant("", "method", first=self._first()).order(names)

    def _first(self) -> int:
        return int(self.reverse) if self.first is None else [*self.models].index(self.first)

    def fusion(self, *, draft: str | Provider, assistant: str | Provider | Sequence[str | Provider]) -> Fusion:
        """Create the advised fusion; no request is sent yet.

        Args:
            draft: the draft, as it was given to `advise`; if `reverse` is set, this model becomes an assistant.
            assistant: the assistant, as it was given to `advise`, or all of the assistants in the same order.

        Raises:
            SettingError: the advice is not to fuse; the number of models differs from the advice; or the method has a
                user-defined part, which the advice does not contain.
        """
        if self.decision != "fuse":
            words = f"use {with_article(self.model)} alone"
            if self.decision != "alone":
                words = "undecided" if self.decision == "undecided" else "unknown, as it was stopped"
            raise SettingError(f"the advice is not to fuse these models ({words}): there are no settings of a fusion")
        others = [assistant] if isinstance(assistant, str | Provider) else [*assistant]
        if 1 + len(others) != len(self.models):
            words = f"the advice is on {len(self.models)} models, not {1 + len(others)}"
            raise SettingError(f"{words}: give the draft and the assistants as they were given to advise")
        way = Contestant(self.way or "", "method", method_of(self.settings), self._first())
        fusion = way.fusion([connect(one) if isinstance(one, str) else one for one in (draft, *others)], self.unit)
        drawn = {"seed": self.seed} if fusion.settings.method.temperature else {}
        fusion.limits = cast("AnswerOptions", {**self.limits, **drawn})
        return fusion

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        draft: str | Provider,
        assistant: str | Provider | Sequence[str | Provider],
    ) -> None:
        """Write the settings file of the advised fusion, with the advice as a comment above it; see `Fusion.save`.

        Raises:
            OSError: the file cannot be written.
            SettingError: see `fusion`.
        """
        self.fusion(draft=draft, assistant=assistant).save(path, comment=fill(str(self), WIDTH))


@dataclass(frozen=True, slots=True)
class AdviceFacts:
    """Facts for an `Advice` that do not follow from the looks.

    Attributes:
        contestants: the ways to fuse, keyed by name.
        answers: answers of the advised way (`"fused"`) and of each model to the same questions, keyed by question.
        prices: the price of each model, keyed by the model's name.
        questions: number of questions that were given.
        equal: see `Advice`.
        audited: see `Advice`.
        disagreed: see `Advice`.
        notes: see `Advice`.
    """

    contestants: Mapping[str, Contestant]
    answers: Mapping[str, Mapping[str, GradedAnswer]]
    prices: Mapping[str, Price] | None = None
    questions: int = 0
    equal: int = 0
    audited: int = 0
    disagreed: int = 0
    notes: tuple[str, ...] = field(default=())


def advice_of(
    part: Comparison,
    outcomes: Outcomes,
    trial: SequentialTest,
    worth: float,
    asked: AdviceFacts,
    *,
    room: Estimated | None = None,
) -> Advice:
    """Make the advice that follows from the looks; `part` is a comparison of at least the models alone."""
    reasons = reasoned(outcomes, trial, worth, complete=part.stopped is None, room=room)
    way = asked.contestants.get(reasons.get("way", ""))
    standing = None if way is None else standing_of(part, way.name)
    chosen: dict[str, Any] = {}
    if way is not None:
        first = way.first if len(part.models) > 2 else 0
        chosen = {
            "reverse": way.reverse,
            "first": [*part.models][first] if first else None,
            "settings": way.settings if standing is None else standing.settings,
        }
        if standing is not None:
            chosen["first"] = standing.first
    return Advice(
        **reasons,
        **chosen,
        questions=asked.questions,
        equal=asked.equal,
        audited=asked.audited,
        disagreed=asked.disagreed,
        bills={name: _bill([*found.values()], asked.prices) for name, found in asked.answers.items() if found},
        doubts=_doubts(part),
        draft=part.draft,
        assistant=part.assistant,
        more_assistants=part.more_assistants,
        grader=part.grader,
        unit=part.unit,
        limits={"max_tokens": part.max_tokens, **({"stop": [*part.stop]} if part.stop else {})},
        seed=part.seed,
        left_out=part.left_out,
        stopped=part.stopped,
        billed_tokens=part.billed_tokens,
        notes=asked.notes,
        parts=(part.model_copy(update={"answers": ()}),),
    )


def _bill(answers: Sequence[GradedAnswer], prices: Mapping[str, Price] | None) -> Bill:
    """Average the cost of these answers."""
    seconds = [one.seconds for one in answers if one.seconds is not None]
    money = [found for one in answers if (found := one.money(prices)) is not None]
    return Bill(
        requests=statistics.fmean(sum(use.requests for use in one.usage.values()) for one in answers),
        billed=statistics.fmean(one.billed for one in answers),
        seconds=statistics.median(seconds) if seconds else None,
        money=statistics.fmean(money) if money else None,
    )


def _doubts(part: Comparison) -> dict[str, Doubts]:
    """Count, for each model, how often it was unsure in the wrong answers that it gave alone."""
    known = {name: one.least for name, one in part.calibration.items() if name in part.models}
    return {
        name: Doubts(answers=one.answers, wrong=one.wrong, sure=one.confident_wrong, alpha=one.alpha)
        for name, one in known.items()
    }
