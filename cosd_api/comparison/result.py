"""The result of `compare`: `Comparison`, with the standing of each contestant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from pydantic import Field

from cosd_api import Example, Fusion, SettingError, __version__
from cosd_api.comparison.advice import WORTH, Advice, advice_on
from cosd_api.comparison.contestants import ORACLE, Contestant, ContestantKind, LeftOut, method_of, model_names
from cosd_api.comparison.graders import group_of
from cosd_api.comparison.journal import AnswerUsage, GradedAnswer
from cosd_api.comparison.prices import Price
from cosd_api.comparison.report import comparison_report
from cosd_api.comparison.statistics import Estimated, Joint, Outcomes, PairedDifference, wilson
from cosd_api.extend import Record, Unit, check_between
from cosd_api.types import Endpoint
from cosd_providers import Provider, connect

Answers = Mapping[str, Mapping[str, GradedAnswer]]
"""Graded answers, keyed by contestant, then by question."""


class Standing(Record):
    """The result of one contestant on the test questions.

    Attributes:
        name: name of the contestant.
        kind: kind of the contestant.
        reverse: whether an assistant drafts, or is listed first.
        first: the name of the model that drafts, or is listed first, if there are several assistants.
        settings: the method's name, settings and verifier; empty if the answers are derived from other contestants'
            answers.
        answered: number of questions with a graded answer.
        failed: number of questions that failed.
        right: number of right answers.
        accuracy: share of right answers, with its 95 % interval.
        differences: paired differences from each other model alone, keyed by the model's name. A way to fuse counts as
            better than the models only if it is better than each of them; see `better_than_all`.
        acceptance: mean share of the draft's tokens that were kept; None if the method judges no draft.
        seconds: median duration of an answer.
        tokens: mean number of tokens of an answer.
        requests: mean number of requests per answer, keyed by the user's names for the models: `"draft"` and
            `"assistant"` (or `"assistant 1"` and so on).
        read: mean number of tokens read per answer, under the same keys.
        written: mean number of tokens written per answer, under the same keys.
        cached: mean number of tokens per answer that were read from the server's cache, as far as the server reports
            them, under the same keys.
        money: mean price of an answer; None if no prices are given.
    """

    name: str
    kind: ContestantKind
    reverse: bool = False
    first: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    answered: int
    failed: int
    right: int
    accuracy: Estimated
    differences: dict[str, PairedDifference] = Field(default_factory=dict[str, PairedDifference])
    acceptance: float | None = None
    seconds: float | None = None
    tokens: float | None = None
    requests: dict[str, float] = Field(default_factory=dict[str, float])
    read: dict[str, float] = Field(default_factory=dict[str, float])
    written: dict[str, float] = Field(default_factory=dict[str, float])
    cached: dict[str, float] = Field(default_factory=dict[str, float])
    money: float | None = None

    def place(self, models: Sequence[str]) -> int:
        """The index of the model that drafts, or is listed first; `models` are the names of all models."""
        return models.index(self.first) if self.first else int(self.reverse)

    @property
    def asked(self) -> int:
        """Number of questions that the contestant answered or failed at."""
        return self.answered + self.failed

    @property
    def of_asked(self) -> float:
        """Share of right answers if failed questions count as wrong; NaN without questions."""
        return self.right / self.asked if self.asked else math.nan

    @property
    def better_than_all(self) -> bool:
        """True if significantly better than each model alone, even if all failed questions count against it."""
        return bool(self.differences) and all(one.low > 0 for one in self.differences.values())

    @property
    def billed(self) -> float | None:
        """Mean number of tokens that all endpoints read and wrote for an answer; None without answers."""
        return sum(self.read.values()) + sum(self.written.values()) if self.answered else None


class FailedAnswer(Record):
    """A question at which a contestant failed.

    Attributes:
        contestant: name of the contestant.
        question: key of the question (`Example.key`).
        error: the reason for the failure.
        development: whether it is a development question, which counts in no standing.
    """

    contestant: str
    question: str
    error: str
    development: bool = False


class Comparison(Record):
    """A comparison of two or more models alone, every way to fuse them, and baselines, all on the same questions.

    All standings are measured on the test questions. The settings of two baselines, the random gate and
    self-consistency, depend on answers. They are determined on development questions, which are held out from the test:
    the questions with the smallest hashes (`Example.key`), a share of all questions, but at least one.

    Attributes:
        schema_version: version of this format.
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
        grader: name of the grader.
        max_tokens: maximum number of tokens in each answer.
        stop: stop strings; an answer ended before the first one that would have appeared in it.
        seed: seed for random draws.
        unit: the unit, as it was given.
        standings: standings of all contestants: first the models, then the oracle, the ways to fuse and the other
            baselines.
        left_out: contestants that could not be compared, with the reasons.
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
    grader: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    unit: Unit | None = None
    standings: tuple[Standing, ...]
    left_out: tuple[LeftOut, ...] = ()
    stopped: str | None = None
    billed_tokens: int = 0
    spent_tokens: int = 0
    answers: tuple[GradedAnswer, ...] = ()
    failures: tuple[FailedAnswer, ...] = ()
    warnings: tuple[str, ...] = ()
    library_version: str = __version__

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
        for one in self.standings:
            if one.name == name:
                return one
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

    def fusion(
        self, name: str, *, draft: str | Provider, assistant: str | Provider | Sequence[str | Provider]
    ) -> Fusion:
        """Create the fusion that a contestant stands for, with the limits of its answers; no request is sent yet.

        Args:
            name: name of the contestant, such as `Advice.way`.
            draft: the draft, as it was given to `compare`; if another model drafts, it becomes an assistant.
            assistant: the assistant, as it was given to `compare`, or all of the assistants in the same order.

        Raises:
            KeyError: no contestant has this name.
            SettingError: the number of models differs, or the method has a user-defined part.
        """
        one, others = self[name], [assistant] if isinstance(assistant, str | Provider) else [*assistant]
        if 1 + len(others) != len(self.models):
            count = f"{len(self.models)} models were compared, not {1 + len(others)}"
            raise SettingError(f"{count}: give the draft and the assistants as they were given to compare")
        way = Contestant(name, "method", method_of(one.settings), one.place([*self.models]))
        fusion = way.fusion(
            [connect(given) if isinstance(given, str) else given for given in (draft, *others)], self.unit
        )
        fusion.limits = {"max_tokens": self.max_tokens, "stop": self.stop or None}
        if fusion.settings.method.temperature:
            fusion.limits["seed"] = self.seed
        return fusion

    def answers_of(self, name: str, *, development: bool = False) -> dict[str, GradedAnswer]:
        """Map questions to a contestant's graded answers, for the test questions or the development questions."""
        held = set(self.development)
        return {
            one.question: one
            for one in self.answers
            if one.contestant == name and one.right is not None and (one.question in held) == development
        }


def standings_of(
    contestants: Sequence[Contestant],
    questions: Sequence[Example],
    answers: Answers,
    failures: Iterable[FailedAnswer] = (),
    prices: Mapping[str, Price] | None = None,
) -> tuple[list[Standing], str]:
    """Compute the standings of contestants, and the name of the better model.

    Args:
        contestants: the contestants in the order of the standings. The first ones are the models alone.
        questions: the questions that count.
        answers: the graded answers; they may include answers to other questions.
        failures: the questions that failed.
        prices: the price of each endpoint; None if no prices are given.
    """
    models = [one.name for one in contestants if one.kind == "alone"]
    keys = [one.key for one in questions]
    failed: dict[str, set[str]] = {}
    for lost in failures:
        if not lost.development:
            failed.setdefault(lost.contestant, set()).add(lost.question)
    right: dict[str, dict[str, bool]] = {}
    for one in contestants:
        known = answers.get(one.name, {})
        right[one.name] = {key: bool(known[key].right) for key in keys if key in known}
    common = [key for key in keys if all(key in right[name] for name in models)]
    right[ORACLE] = {key: any(right[name][key] for name in models) for key in common}
    groups = {one.key: group_of(one) for one in questions}
    found: list[Standing] = []
    for one in contestants:
        names = models if one.kind == "derived" else [one.name]
        mine = right[one.name]
        clusters: dict[str, list[bool]] = {}
        for key, value in mine.items():
            clusters.setdefault(groups[key], []).append(value)
        standing = Standing(
            name=one.name,
            kind=one.kind,
            reverse=one.first > 0,
            first=models[one.first] if len(models) > 2 and one.method is not None else None,
            settings=one.settings,
            answered=len(mine),
            failed=len({key for name in names for key in failed.get(name, ())}),
            right=sum(mine.values()),
            accuracy=wilson([(sum(several), len(several)) for several in clusters.values()]),
            **_cost([[answers[name][key] for name in names] for key in mine], models, prices) if mine else {},
        )
        found.append(standing)
    billed = {one.name: one.billed for one in found if one.billed is not None and one.kind != "derived"}
    outcomes = Outcomes(models, keys, right, failed, groups, billed)
    joint = Joint(outcomes, [one.name for one in found if one.kind in ("method", "baseline") and one.answered])
    differences = {
        one.name: {name: joint.difference(one.name, name) for name in models if name != one.name} for one in found
    }
    compared = [one.model_copy(update={"differences": differences[one.name]}) for one in found]
    return compared, outcomes.best_model()


def _cost(
    answers: Sequence[Sequence[GradedAnswer]], models: Sequence[str], prices: Mapping[str, Price] | None
) -> dict[str, Any]:
    """Compute the mean or median of each cost over the questions.

    Each entry of `answers` belongs to one question. It contains the contestant's answer or, for a derived contestant,
    the answers of all models.
    """
    several = [*chain.from_iterable(answers)]

    def mean(of: Callable[[AnswerUsage], float]) -> dict[str, float]:
        return {
            name: math.fsum(of(one.usage.get(name, AnswerUsage())) for one in several) / len(answers) for name in models
        }

    read, written, cached = mean(lambda one: one.read), mean(lambda one: one.written), mean(lambda one: one.cached)
    rates = [one.acceptance for one in several if one.acceptance is not None]
    return {
        "acceptance": math.fsum(rates) / len(rates) if rates else None,
        "seconds": statistics.median(max(at.seconds or 0.0 for at in one) for one in answers),
        "tokens": math.fsum(one.tokens for one in several) / len(several),
        "requests": mean(lambda one: one.requests),
        "read": read,
        "written": written,
        "cached": cached,
        "money": prices and sum(prices[name].of(read[name], written[name], cached[name]) for name in read),
    }
