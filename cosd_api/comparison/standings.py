"""Standings of a comparison, computed from the answers: right answers, differences, costs and replaced places."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic import Field

from cosd_api import Example
from cosd_api.comparison.contestants import ORACLE, Contestant, ContestantKind
from cosd_api.comparison.contrasts import (
    GradedOutcomes,
    Joint,
    PairedDifference,
    ThirdModel,
    alike,
    best_model,
    best_way,
    leading,
)
from cosd_api.comparison.journal import AnswerUsage, GradedAnswer
from cosd_api.comparison.prices import Price
from cosd_api.comparison.questions import group_of
from cosd_api.comparison.statistics import CalibrationCurve, Estimated, PairedCounts, calibration, wilson_by_groups
from cosd_api.extend import Record, first_character, last_character


class PlaceCounts(Record):
    """Counts of replaced places, grouped by the model that was right at the place.

    If the fused answer is equal to the reference answer up to a replaced place, the model whose text continues the
    reference was right. Because the grader judges only whole answers, `answers` compares the grades of answers that
    have a replaced place with the grades of the drafting model's own answers.

    Attributes:
        places: number of replaced places.
        assistant: places where only the assistant's text continues the reference.
        draft: places where only the draft's text continues the reference.
        neither: places where neither the assistant's nor the draft's text continues the reference.
        unknown: places where the answer had already departed from the reference, or where both texts continue it.
        answers: counts of whole answers with a replaced place; replacements corrected `won` answers and spoilt `lost`
            answers.
    """

    places: int
    assistant: int
    draft: int
    neither: int
    unknown: int
    answers: PairedCounts


class Standing(Record):
    """The result of one contestant on the test questions.

    Attributes:
        name: name of the contestant.
        kind: kind of the contestant.
        reverse: whether an assistant drafts, or is listed first.
        first: the name of the model that drafts, or is listed first, if there are several assistants.
        without: the name of the model that takes no part; None if all models take part.
        settings: the method's name, settings and verifier; empty if the answers are derived from other contestants'
            answers.
        answered: number of questions with a graded answer.
        failed: number of questions that failed.
        right: number of right answers.
        accuracy: share of right answers, with its 95 % interval.
        differences: paired differences from each other model alone, keyed by the model's name. A way to fuse counts as
            better than the models only if it is better than each of them; see `better_than_all`.
        same_texts_as: name of a cheaper way to fuse that wrote the same text for every question; the two ways share a
            row of the table. None if there is no such way.
        acceptance: mean share of the draft's tokens that were kept; None if the method judges no draft.
        seconds: median duration of an answer.
        first_token: median time until the first token was final.
        tokens: mean number of tokens of an answer.
        requests: mean number of requests per answer, keyed by the user's names for the models: `"draft"` and
            `"assistant"` (or `"assistant 1"` and so on).
        read: mean number of tokens read per answer, under the same keys.
        written: mean number of tokens written per answer, under the same keys.
        cached: mean number of tokens per answer that were read from the server's cache, as far as the server reports
            them, under the same keys.
        money: mean price of an answer; None if no prices are given.
        replaced: counts of replaced places; None if the method judges no draft.
        on_frontier: whether the contestant is ahead of every contestant that bills fewer tokens, in each case by more
            than one standard error of the difference. A failed question counts as wrong. A contestant that was not
            asked all questions is never on the frontier.
    """

    name: str
    kind: ContestantKind
    reverse: bool = False
    first: str | None = None
    without: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    answered: int
    failed: int
    right: int
    accuracy: Estimated
    differences: dict[str, PairedDifference] = Field(default_factory=dict[str, PairedDifference])
    same_texts_as: str | None = None
    acceptance: float | None = None
    seconds: float | None = None
    first_token: float | None = None
    tokens: float | None = None
    requests: dict[str, float] = Field(default_factory=dict[str, float])
    read: dict[str, float] = Field(default_factory=dict[str, float])
    written: dict[str, float] = Field(default_factory=dict[str, float])
    cached: dict[str, float] = Field(default_factory=dict[str, float])
    money: float | None = None
    replaced: PlaceCounts | None = None
    on_frontier: bool = False

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


class ModelCalibration(Record):
    """Agreement between one model's probabilities and its accuracy, over the answers that it gave alone.

    Attributes:
        mean: calibration of the mean probability of an answer's tokens, with the expected calibration error.
        least: calibration of the smallest probability of an answer's tokens. `confident_wrong` counts the wrong answers
            in which every token has a probability of at least `alpha`; a rule with this alpha asks no assistant about
            them.
    """

    mean: CalibrationCurve
    least: CalibrationCurve


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


@dataclass(frozen=True, slots=True)
class Gathered:
    """The questions and answers from which the result of a comparison is computed.

    Attributes:
        models: names of the models alone, as contestants.
        test: the test questions, in the order given.
        development: the development questions, which set the baselines.
        contestants: the contestants in the order of the standings, including the models and the derived contestants.
        answers: the complete answers, keyed by contestant, then by question.
        failed: the reasons why questions failed, keyed by contestant, then by question.
        prices: the price of each endpoint; None if no prices are given.
    """

    models: Sequence[str]
    test: Sequence[Example]
    development: Sequence[Example]
    contestants: Sequence[Contestant]
    answers: Mapping[str, Mapping[str, GradedAnswer]]
    failed: Mapping[str, Mapping[str, str]]
    prices: Mapping[str, Price] | None

    def right(self, name: str, questions: Sequence[Example]) -> dict[str, bool]:
        """Map questions to whether a contestant's complete answer is right."""
        found = self.answers.get(name, {})
        return {one.key: bool(found[one.key].right) for one in questions if one.key in found}


def better_of(gathered: Gathered) -> str:
    """The better model on the development questions, counting only questions that all models answered."""
    right = {name: gathered.right(name, gathered.development) for name in gathered.models}
    billed = {
        name: math.fsum(gathered.answers[name][key].billed for key in right[name]) / max(1, len(right[name]))
        for name in gathered.models
    }
    keys = [one.key for one in gathered.development]
    return best_model(GradedOutcomes(models=gathered.models, questions=keys, right=right, billed=billed))


@dataclass(frozen=True, slots=True)
class JudgedStandings:
    """The standings of a comparison, and the findings that follow from them.

    Attributes:
        standings: standings of all contestants, in order.
        better: the model with the most right answers.
        third: for three models, the comparison that tells whether the third model is worth its price; None if no ways
            to fuse only two of the models were compared.
    """

    standings: Sequence[Standing]
    better: str
    third: ThirdModel | None


def judged(gathered: Gathered) -> JudgedStandings:
    """Compute the standings of all contestants, in order."""
    questions = [one.key for one in gathered.test]
    names = [one.name for one in gathered.contestants]
    right = right_answers(gathered.models, names, questions, gathered.answers)
    standings = [_standing(one, gathered, right[one.name]) for one in gathered.contestants]
    failed = {name: {*questions} & {*why} for name, why in gathered.failed.items()}
    groups = {one.key: group_of(one) for one in gathered.test}
    return counted_by(standings, gathered.models, questions, gathered.answers, failed, groups)


def right_answers(
    models: Sequence[str],
    names: Iterable[str],
    questions: Sequence[str],
    answers: Mapping[str, Mapping[str, GradedAnswer]],
) -> dict[str, dict[str, bool]]:
    """Find out which questions each contestant and the oracle answered right, keyed by name, then by question."""
    found: dict[str, dict[str, bool]] = {}
    for name in dict.fromkeys([*models, *names]):
        mine = answers.get(name, {})
        found[name] = {key: bool(mine[key].right) for key in questions if key in mine}
    common = [key for key in questions if all(key in found[name] for name in models)]
    return {**found, ORACLE: {key: any(found[name][key] for name in models) for key in common}}


def counted_by(
    standings: Sequence[Standing],
    models: Sequence[str],
    questions: Sequence[str],
    answers: Mapping[str, Mapping[str, GradedAnswer]],
    failed: Mapping[str, AbstractSet[str]],
    groups: Mapping[str, str],
) -> JudgedStandings:
    """Add differences, shared rows and frontier to the standings, computed from the complete answers; see `compared`.

    Args:
        standings: standings without the fields that compare contestants.
        models: names of the models alone.
        questions: keys of the test questions.
        answers: the complete answers, keyed by contestant, then by question.
        failed: for each contestant, the questions that failed.
        groups: the group's key for each question.
    """
    right = right_answers(models, [one.name for one in standings], questions, answers)
    billed = {one.name: one.billed for one in standings if one.billed is not None and one.kind != "derived"}
    outcomes = GradedOutcomes(
        models=models, questions=questions, right=right, failed=failed, groups=groups, billed=billed
    )
    texts = {
        one.name: [answers[one.name][key].text for key in questions]
        for one in standings
        if one.kind == "method" and len(right[one.name]) == len(questions)
    }
    return compared(standings, outcomes, texts)


def compared(
    standings: Sequence[Standing], outcomes: GradedOutcomes, texts: Mapping[str, Sequence[str]]
) -> JudgedStandings:
    """Add the differences and all other fields that compare contestants to the standings.

    Args:
        standings: standings without these fields.
        outcomes: outcomes of all contestants.
        texts: for each way to fuse that has answered every question, its answers in the order of the questions.
    """
    ways = [one.name for one in standings if one.kind in ("method", "baseline") and one.answered]
    of_three, of_two = (
        [
            one.name
            for one in standings
            if one.kind == "method" and one.answered and (one.without is None) is all_of_them
        ]
        for all_of_them in (True, False)
    )
    two = best_way(outcomes, of_two)
    joint = Joint(outcomes, ways, [] if two is None else [(three, two) for three in of_three])
    same = alike(texts, outcomes.billed)
    asked = max((one.asked for one in standings), default=0)  # stopping early must not be an advantage
    stars = leading(outcomes, [one.name for one in standings if one.kind != "derived" and one.asked == asked])
    found = [
        one.model_copy(
            update={
                "differences": {name: joint.difference(one.name, name) for name in outcomes.models if name != one.name},
                "same_texts_as": same.get(one.name),
                "on_frontier": one.name in stars,
            }
        )
        for one in standings
    ]
    return JudgedStandings(found, best_model(outcomes), _third(found, outcomes, joint, of_three, two))


def _third(
    standings: Sequence[Standing], outcomes: GradedOutcomes, joint: Joint, of_three: Sequence[str], two: str | None
) -> ThirdModel | None:
    three = best_way(outcomes, of_three)
    if three is None or two is None:
        return None
    money = {one.name: one.money for one in standings}
    first, second = money[three], money[two]
    return ThirdModel(
        three=three,
        two=two,
        difference=joint.difference(three, two),
        billed=(outcomes.billed[three], outcomes.billed[two]),
        money=None if first is None or second is None else (first, second),
    )


def _standing(one: Contestant, gathered: Gathered, mine: Mapping[str, bool]) -> Standing:
    """Compute the standing of one contestant, without the fields that compare contestants."""
    right, answered, several = sum(mine.values()), len(mine), len(gathered.models) > 2
    tests = {example.key for example in gathered.test}
    names = gathered.models if one.kind == "derived" else [one.name]
    answers = [[gathered.answers[name][key] for name in names] for key in mine]
    return Standing(
        name=one.name,
        kind=one.kind,
        reverse=one.reverse,
        first=gathered.models[one.first] if several and one.method is not None else None,
        without=None if one.without is None else gathered.models[one.without],
        settings=one.settings,
        answered=answered,
        failed=len({key for name in names for key in gathered.failed.get(name, {}) if key in tests}),
        right=right,
        accuracy=_accuracy(gathered.test, mine),
        **(_cost(answers, gathered.models, gathered.prices) if answered else {}),
        replaced=_replaced(one, gathered),
    )


def _accuracy(questions: Sequence[Example], right: Mapping[str, bool]) -> Estimated:
    """The share of right answers, with an interval that is clustered by group."""
    groups: dict[str, list[bool]] = {}
    for one in questions:
        if one.key in right:
            groups.setdefault(group_of(one), []).append(right[one.key])
    return wilson_by_groups([(sum(several), len(several)) for several in groups.values()])


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
    firsts = [min(found) for one in answers if (found := [at.first_token for at in one if at.first_token is not None])]
    rates = [one.acceptance for one in several if one.acceptance is not None]
    return {
        "acceptance": math.fsum(rates) / len(rates) if rates else None,
        "seconds": statistics.median(max(at.seconds or 0.0 for at in one) for one in answers),
        "first_token": statistics.median(firsts) if firsts else None,
        "tokens": math.fsum(one.tokens for one in several) / len(several),
        "requests": mean(lambda one: one.requests),
        "read": read,
        "written": written,
        "cached": cached,
        "money": prices and sum(prices[name].of(read[name], written[name], cached[name]) for name in read),
    }


def _replaced(one: Contestant, gathered: Gathered) -> PlaceCounts | None:
    """Count one contestant's replaced places by the model that was right; None if its method judges no draft."""
    mine = gathered.answers.get(one.name, {})
    alone = gathered.answers.get(gathered.models[one.first], {})
    judged = [example for example in gathered.test if (found := mine.get(example.key)) and found.units is not None]
    if not judged:
        return None
    verdicts = [verdict for example in judged for verdict in _verdicts(example, mine[example.key])]
    pairs = [
        (bool(mine[key].right), bool(alone[key].right))
        for key in (example.key for example in judged)
        if mine[key].replaced and key in alone
    ]
    return PlaceCounts(
        places=len(verdicts),
        assistant=verdicts.count("assistant"),
        draft=verdicts.count("draft"),
        neither=verdicts.count("neither"),
        unknown=verdicts.count("unknown"),
        answers=PairedCounts.of([first for first, _ in pairs], [second for _, second in pairs]),
    )


def _verdicts(example: Example, answer: GradedAnswer) -> list[str]:
    """Say for each replaced place of an answer which model's text continues the reference."""
    reference, text = example.answer.encode(), answer.text.encode()
    found: list[str] = []
    for place in answer.replaced:
        before, rest = reference[: place.start], reference[place.start :]
        if text[: place.start] != before or len(before) < place.start:
            found.append("unknown")
            continue
        draft = _continues(rest, place.draft_data, ends=example.ends)
        assistant = _continues(rest, place.fused_data, ends=example.ends)
        within = (
            draft and place.word and _within_word(rest, place.draft_data)
        )  # the draft might have completed the word correctly
        if place.word and _within_word(rest, place.fused_data):
            assistant = False
        found.append(
            "unknown"
            if within or (draft and assistant)
            else "draft"
            if draft
            else "assistant"
            if assistant
            else "neither"
        )
    return found


def _continues(rest: bytes, text: bytes, *, ends: bool) -> bool:
    """Test whether the rest of the reference begins with a text; an empty text means the end of sequence."""
    if not text:
        return not rest
    return rest.startswith(text) or (not ends and not rest)


def _within_word(rest: bytes, text: bytes) -> bool:
    """Test whether `text`, which is the beginning of `rest`, ends within a word of `rest`."""
    return first_character(rest[len(text) :]).isalnum() and last_character(text).isalnum()


def calibration_of(gathered: Gathered) -> dict[str, ModelCalibration]:
    """Compute each model's calibration from the answers that it gave alone; models without probabilities are absent."""
    found: dict[str, ModelCalibration] = {}
    for name in gathered.models:
        answers = gathered.answers.get(name, {}).values()
        known = [one for one in answers if one.confidence is not None and one.least is not None]
        if known:
            found[name] = ModelCalibration(
                mean=calibration([(one.confidence or 0.0, bool(one.right)) for one in known]),
                least=calibration([(one.least or 0.0, bool(one.right)) for one in known]),
            )
    return found
