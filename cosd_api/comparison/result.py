"""Results: a comparison with the standing of each contestant, the advice by one or two of them, and both in words."""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from textwrap import fill
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from cosd_api import Fusion, SettingError, __version__
from cosd_api.comparison.advice import AdviceCounts, Bill, Doubts, advice_words, reasoned
from cosd_api.comparison.contestants import ORACLE, Contestant, LeftOut, method_of, model_names
from cosd_api.comparison.contrasts import GradedOutcomes, PairedDifference, ThirdModel
from cosd_api.comparison.journal import GradedAnswer
from cosd_api.comparison.looks import WORTH, Lookout, Outcomes, in_order, looked_at, schedule
from cosd_api.comparison.prices import Price
from cosd_api.comparison.questions import group_of
from cosd_api.comparison.standings import (
    FailedAnswer,
    Gathered,
    ModelCalibration,
    Standing,
    calibration_of,
    compared,
    judged,
)
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import (
    AnswerOptions,
    Record,
    Unit,
    check_between,
    counted,
    in_words,
    outdated,
    with_article,
    with_notes,
)
from cosd_api.types import Endpoint
from cosd_providers import Provider, connect

_WIDTH = 110  # characters of a line of the comment in a settings file


class Comparison(Record):
    """Two or more models alone, fused in every way, and baselines, on the same questions.

    All standings are measured on the test questions. Where there are baselines that follow from answers (the random
    gate and self-consistency), some other questions set them: the share with the smallest hashes (`Example.key`), at
    least one.

    Attributes:
        schema_version: version of this format. Version 1 had differences to one model alone, which the development
            questions had chosen; such a result is read, and its differences are counted from its answers.
        draft: the draft endpoint, as the user gave it.
        assistant: the assistant endpoint, or the first of several.
        more_assistants: the others.
        questions: number of test questions.
        groups: number of groups of them (`Example.group`); as many where each is its own.
        development: keys (`Example.key`) of the questions that set the baselines.
        better: the model with the most right answers to the test questions that all have answered, `"draft"`,
            `"assistant"`, or of several `"assistant 1"`, say; of equals the one that billed fewer tokens, then the
            draft. If it is shown to be better than another one, its difference to that one says.
        third: of three models, if the third is worth its price; None without ways to fuse two of them.
        grader: name of the grader.
        max_tokens: limit for each answer.
        stop: strings before which an answer ended.
        seed: of what was drawn.
        unit: as it was given.
        standings: of all contestants, in their order.
        left_out: what could not be compared, and why.
        calibration: by the same names; without a model whose probabilities are not reported.
        stopped: why the comparison is not complete; None if it is.
        billed_tokens: of this comparison, earlier runs with the same journal included.
        spent_tokens: of this run alone.
        answers: all answers, to the questions that set baselines too.
        failures: the questions that failed, and why.
        warnings: in words.
        library_version: of cosd-api.
    """

    schema_version: Literal[2] = 2
    draft: Endpoint
    assistant: Endpoint
    more_assistants: tuple[Endpoint, ...] = ()
    questions: int
    groups: int | None = None
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
        """All endpoints, by the names of the contestants that are these models alone."""
        several = (self.draft, self.assistant, *self.more_assistants)
        return dict(zip(model_names(len(several)), several, strict=True))

    def __getitem__(self, name: str) -> Standing:
        """The standing of a contestant.

        Raises:
            KeyError: there is none of this name.
        """
        if (found := standing_of(self, name)) is not None:
            return found
        names = ", ".join(one.name for one in self.standings)
        raise KeyError(f"no contestant is named {name!r}; there are {names}")

    def __str__(self) -> str:
        return comparison_report(self)

    def advice(self, *, worth: float = WORTH, choosing: float | None = None) -> Advice:
        """Advise by these answers whether to fuse the models, and how; `advise` asks for as many as it takes.

        It looks once, at all test questions.

        Args:
            worth: the least gain in accuracy that fusing would be worth, from 0.001 to 1; see `Advice`.
            choosing: deprecated, and without effect.

        Raises:
            SettingError: there are fewer than 20 test questions, or `worth` is invalid.
        """
        if choosing is not None:
            outdated("Comparison.advice(choosing=...)", "without effect, as all questions choose and test,")
        check_between("worth", worth, 0.001, 1)
        outcomes, watch = outcomes_of(self), Lookout()
        if self.stopped is None:
            order = in_order(outcomes.questions)
            looked_at(outcomes, order, schedule(len(order), looks="end"), watch, worth)
        fused = watch.fused
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
        return advice_of(self, outcomes, watch, worth, facts)

    def answers_of(self, name: str, *, development: bool = False) -> dict[str, GradedAnswer]:
        """Complete answers of a contestant to the test questions, or to the development ones, by question."""
        held = set(self.development)
        return {
            one.question: one
            for one in self.answers
            if one.contestant == name and one.complete and (one.question in held) == development
        }


def comparison_of(gathered: Gathered, **fields: Any) -> Comparison:
    """The comparison of what was gathered; `fields` are those that do not follow from it."""
    found = judged(gathered)
    if fields.get("stopped") is None:
        lost = [one.name for one in found.standings if one.asked != len(gathered.test)]
        assert not lost, f"complete, but not all questions of {', '.join(lost)} were answered or failed"
    held = {one.key for one in gathered.development}
    return Comparison(
        questions=len(gathered.test),
        groups=len({*map(group_of, gathered.test)}),
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
    """The fields of a comparison of version 1 in this version: its differences are counted from its answers.

    In a part of an advice, which has none, there are no differences.
    """
    held = {*given["development"]}
    standings = [
        Standing.model_validate(one)
        for one in given["standings"]
        if one["kind"] != "derived" or one["name"] == ORACLE  # the other one repeated a model's row
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
    right = {one.name: {key: bool(a.right) for key, a in by.get(one.name, {}).items()} for one in standings}
    common = [key for key in right[models[0]] if all(key in right[name] for name in models)]
    right[ORACLE] = {key: any(right[name][key] for name in models) for key in common}
    questions = [*dict.fromkeys(key for one in right.values() for key in one)]
    questions += [key for key in dict.fromkeys(chain.from_iterable(failed.values())) if key not in {*questions}]
    outcomes = GradedOutcomes(
        models=models,
        questions=questions,
        right=right,
        failed=failed,
        billed={one.name: one.billed for one in standings if one.billed is not None and one.kind != "derived"},
    )
    texts = {
        one.name: [by[one.name][key].text for key in questions]
        for one in standings
        if one.kind == "method" and all(key in by.get(one.name, {}) for key in questions)
    }
    made = compared(standings, outcomes, texts)
    return {**found, "answers": answers, "standings": made.standings, "better": made.better}


def standing_of(found: Comparison, name: str) -> Standing | None:
    """The standing of a contestant; None if there is none of this name."""
    return next((one for one in found.standings if one.name == name), None)


def outcomes_of(found: Comparison) -> Outcomes:
    """The outcomes of the test questions, by contestant."""

    def right(name: str) -> dict[str, bool]:
        return {key: bool(one.right) for key, one in found.answers_of(name).items()}

    ways = [one.name for one in found.standings if one.kind == "method" and one.without is None]
    billed = {one.name: one.billed for one in found.standings if one.billed is not None}
    return Outcomes({name: right(name) for name in found.models}, {name: right(name) for name in ways}, billed)


class Advice(AdviceCounts):
    """Advice on two or more models. `str(advice)` is it in words.

    Every way to fuse is held against each model alone, by sign flips that all ways and all looks share. Where no way is
    better than the better model, at most 5 of 100 runs advise to fuse, also if the file of questions grows and whatever
    ways are tried: see `cosd_api.comparison.looks`.

    Attributes:
        schema_version: version of this format.
        decision: `"fuse"`; `"alone"`, to use one model, as a gain of `worth` is excluded; `"undecided"` where
            neither is shown; `"unknown"` where it was stopped before.
        model: the better model alone: `"draft"`, `"assistant"`, or of several `"assistant 1"`, say.
        way: the way to fuse that is advised, or that gains most so far, by its name in a comparison.
        reverse: whether an assistant, as given, is to draft.
        first: the name of the model that is to draft, where there are several assistants.
        settings: the way's method, its settings and its verifier.
        questions: number of questions that were given.
        tested: number of those that decided: all models have answered them.
        tried: number of ways that were ever tried, in earlier runs with the same `path`, too.
        looks: number of looks.
        worth: the gain in accuracy that would be worth fusing for.
        equal: number of questions to which all models wrote the same text, and which ways were not asked for that.
        audited: number of answers to such questions that were asked for all the same.
        disagreed: those of them with another grade than the models' text.
        right: right answers to the questions that decided, of the way (`"fused"`) and of each model alone.
        accuracy: the same as shares, with their 95 % intervals.
        gain: in accuracy over the better model; its lower end holds for all ways and looks, its upper end is that of a
            95 % interval. None without a look.
        upper: the gain that no way exceeds, by 2.5 standard errors.
        more: of `"undecided"`, about the number of further questions that would show the gain, or one of `worth`, in
            four of five runs.
        room: where it decided, the share of the questions with differing texts at which the better model is wrong: no
            way gains more.
        ways: every way at the last look that it was in, the best first.
        bills: of an answer, by the same names.
        doubts: of the models.
        draft: the draft's endpoint, as given.
        assistant: the assistant's, or the first one's.
        more_assistants: those of the others.
        grader: name of the grader.
        unit: as given.
        limits: of an answer: those of the measured ones, which the settings file has, too.
        seed: of what was drawn.
        left_out: what the endpoints cannot serve.
        stopped: why it is not complete.
        billed_tokens: of all that it is made of, earlier runs with the same `path` included.
        notes: for the reader.
        parts: the comparison that it is made of, without the answers: of the models alone, or the one that advised.
        library_version: of cosd-api.
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
        """All endpoints, by the names of the models alone."""
        several = (self.draft, self.assistant, *self.more_assistants)
        return dict(zip(model_names(len(several)), several, strict=True))

    @property
    def order(self) -> list[str]:
        """The names of the models in the order of the fusion that is advised."""
        names = [*self.models]
        return Contestant("", "method", first=self._first()).order(names)

    def _first(self) -> int:
        return int(self.reverse) if self.first is None else [*self.models].index(self.first)

    def fusion(self, *, draft: str | Provider, assistant: str | Provider | Sequence[str | Provider]) -> Fusion:
        """The fusion that is advised; sends nothing yet.

        Args:
            draft: the draft as it was given; where `reverse` is set, it assists.
            assistant: likewise; or all of the assistants, in the order in which they were given.

        Raises:
            SettingError: one model alone is advised; the advice is on more models, or fewer; or the method has a part
                of the user's own, which is not in it.
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
        """Write the settings file of the fusion that is advised, with the advice above it; see `Fusion.save`.

        Raises:
            OSError: the file cannot be written.
            SettingError: see `fusion`.
        """
        self.fusion(draft=draft, assistant=assistant).save(path, comment=fill(str(self), _WIDTH))


@dataclass(frozen=True, slots=True)
class AdviceFacts:
    """The circumstances of an advice: what was asked, and what it cost.

    Attributes:
        contestants: the ways, by name.
        answers: of the way that is advised (`"fused"`), and of each model to the same questions.
        prices: by the models' names.
        questions: number of questions that were given.
        equal: see `Advice`, like all that follow.
        audited: likewise.
        disagreed: likewise.
        notes: likewise.
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
    watch: Lookout,
    worth: float,
    asked: AdviceFacts,
    *,
    room: Estimated | None = None,
) -> Advice:
    """The advice by looks at outcomes; `part` is a comparison of the models at least."""
    reasons = reasoned(outcomes, watch, worth, complete=part.stopped is None, room=room)
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
    """The mean cost of these answers."""
    seconds = [one.seconds for one in answers if one.seconds is not None]
    money = [found for one in answers if (found := one.money(prices)) is not None]
    return Bill(
        requests=statistics.fmean(sum(use.requests for use in one.usage.values()) for one in answers),
        billed=statistics.fmean(one.billed for one in answers),
        seconds=statistics.median(seconds) if seconds else None,
        money=statistics.fmean(money) if money else None,
    )


def _doubts(part: Comparison) -> dict[str, Doubts]:
    """The doubts of each model, in all of its answers alone."""
    known = {name: one.least for name, one in part.calibration.items() if name in part.models}
    return {name: Doubts(answers=one.answers, wrong=one.wrong, sure=one.confident_wrong) for name, one in known.items()}


# A comparison as plain text.

_HEADS = ("", "right", "accuracy", "95 %")
_COSTS = ("kept", "ms", "requests", "tokens")
MOST_NAMES = 40
"""Characters of the names of ways with equal texts that stand in a row of the table."""


def heads_of(found: Comparison) -> list[str]:
    """Column heads of the table of standings: those of each difference, to each model alone, are together."""
    apart = [head for name in found.models for head in (f"to {name}", "95 %", "won:lost", "p")]
    return [*_HEADS, *apart, *_COSTS]


def rows_of(found: Comparison) -> list[Standing]:
    """The standings that have a row of their own: ways with equal texts share that of the cheapest."""
    return [one for one in found.standings if one.same_texts_as is None]


def same_texts(found: Comparison) -> dict[str, list[Standing]]:
    """The ways that wrote the same texts as a cheaper one, by the name of that one."""
    several: dict[str, list[Standing]] = {}
    for one in found.standings:
        if one.same_texts_as is not None:
            several.setdefault(one.same_texts_as, []).append(one)
    return several


def row_name(one: Standing, same: Mapping[str, Sequence[Standing]]) -> str:
    """The name of a row: of all ways that share it, as far as there is room; the note below names the others."""
    others = [other.name for other in same.get(one.name, ())]
    name = " = ".join([one.name, *others])
    if len(name) > MOST_NAMES:
        name = f"{one.name} = {counted(len(others), 'other')}"
    return name + (" *" if one.on_frontier else "")


def comparison_report(found: Comparison) -> str:
    """The comparison in words and a table."""
    standings, same = rows_of(found), same_texts(found)
    more = optional_columns(standings)
    heads = [*heads_of(found), *more]
    rows = [
        [*standing_cells(one, found, same), *(cells[at] for cells in more.values())] for at, one in enumerate(standings)
    ]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    lines = [
        "  ".join(f"{cell:{'<' if not at else '>'}{widths[at]}}" for at, cell in enumerate(row)).rstrip()
        for row in [heads, *rows]
    ]
    parts = [_title(found), *lines, "", *map(_filled, about_standings(found))]
    parts += [f"Billed tokens: {found.billed_tokens:,}, {found.spent_tokens:,} of them in this run."]
    parts += ["", *map(_filled, findings(found))]
    parts += ["", *(_about_calibration(name, one) for name, one in found.calibration.items())]
    if places := [words for one in standings if (words := _about_places(one))]:
        parts += ["", "Replaced places, judged by the reference where the answer has followed it so far:", *places]
    if found.failures:
        parts += ["", "Failed:", *(f"  {name}, {n}: {error}" for name, n, error in failures_counted(found.failures))]
    if found.left_out:
        parts += ["", "Left out:"]
        parts += [f"  {'; '.join(names)}: {reason}" for reason, names in by_reason(found.left_out).items()]
    if found.stopped is not None:
        parts += ["", f"Not complete: {found.stopped}."]
    return with_notes("\n".join(parts), found.warnings)


def _filled(words: str) -> str:
    return fill(words, _WIDTH)


def _title(found: Comparison) -> str:
    words = f"{roles_in_words([one.model for one in found.models.values()])}, graded by {found.grader}: "
    words += counted(found.questions, "test question")
    if found.groups is not None and found.groups < found.questions:
        words += f" in {counted(found.groups, 'group')}"
    if found.development:
        words += f", {len(found.development)} to set baselines"
    return f"{words}; {limits_in_words(found)}\n"


def roles_in_words(models: Sequence[str]) -> str:
    """The models by their roles: the draft, then the assistants."""
    draft, *assistants = models
    return f"{draft} as the draft, {in_words(assistants)} as the assistant{'s' * (len(assistants) > 1)}"


def limits_in_words(found: Comparison) -> str:
    """The limits with which the answers were made."""
    words = f"answers of at most {counted(found.max_tokens, 'token')}"
    if found.stop:
        words += f", ending before {' or '.join(map(repr, found.stop))}"
    if found.unit is not None:
        words += f", by the unit {found.unit}"
    return f"{words}, seed {found.seed}"


def about_standings(found: Comparison) -> list[str]:
    """The meaning of the columns, a paragraph each."""
    both = "both" if len(found.models) == 2 else "all"
    by_groups = found.groups is not None and found.groups < found.questions
    apart = "Differences are to each model alone, in points, on the questions that both have answered. "
    apart += "Their intervals hold all together, and leave out 0 exactly where p is at most 0.05: sign flips, by the "
    apart += "maximum over all differences of this table."
    if by_groups:
        apart += " The questions of a group count as one; in brackets behind won:lost are groups."
    costs = f"kept: the draft's tokens. ms: median. Requests and tokens: means of an answer, {both} endpoints together."
    costs += " Names that end in *: no answer that costs fewer tokens equals it within one standard error."
    return [
        apart,
        costs,
        *(
            f"{in_words([first, *(one.name for one in others)])} wrote the same texts and share a row, which has the "
            f"numbers of {first}; the others bill {in_words([f'{one.billed or 0:,.0f} tokens' for one in others])}."
            for first, others in same_texts(found).items()
        ),
    ]


def findings(found: Comparison) -> list[str]:
    """The result in sentences: which ways are shown to be better than each model, what failures change, the third."""
    tested = [one for one in rows_of(found) if one.kind in ("method", "baseline") and one.differences]
    if not any(difference.interval is not None for one in tested for difference in one.differences.values()):
        return []
    better = [one.name for one in tested if one.better_than_all]
    each = "both models" if len(found.models) == 2 else "each of the models"
    if better:
        words = f"Better than {each} alone, with 5 % error for all of these together: {in_words(better)}."
    else:
        words = f"No way is shown to be better than {each} alone, with 5 % error for all of them together."
    sentences = [words, *_about_failures(tested, found)]
    if found.third is not None:
        sentences.append(third_in_words(found.third))
    elif found.more_assistants and len(found.models) == _TRIO:
        sentences.append(
            "If the third model is worth its price is not known: the ways to fuse two of them have to be compared, too "
            "(--pairs)."
        )
    return sentences


_TRIO = 3


def _about_failures(tested: Sequence[Standing], found: Comparison) -> list[str]:
    """A sentence on each way whose failures, or a model's, may change what is shown of it."""
    sentences: list[str] = []
    for one in tested:
        doubtful = [
            (name, apart.bounded)
            for name, apart in one.differences.items()
            if apart.interval is not None and apart.bounded is not None and apart.interval.low > 0 >= apart.bounded.low
        ]
        for name, bounded in doubtful:
            sentences.append(
                f"{one.name} is ahead of {with_article(name)} only on the questions that both have answered "
                f"({counted(one.failed, 'question')} of it failed, {found[name].failed} of {with_article(name)}): with "
                f"these it may be {_interval(bounded, signed=True)} points."
            )
    return sentences


def third_in_words(third: ThirdModel) -> str:
    """The answer to the question if a third model is worth its price."""
    apart, (three, two) = third.difference, third.billed
    words = f"The third model: {third.three}, the best way to fuse all three, is {_signed(apart.value)} points"
    if apart.interval is not None:
        words += f" ({_interval(apart.interval, signed=True)})"
    words += (
        f" to {third.two}, the best way to fuse two, and bills {three / two if two else math.inf:.1f} times the tokens"
    )
    if third.money is not None:
        words += f" ({1000 * third.money[0]:,.4g} in place of {1000 * third.money[1]:,.4g} for 1,000 answers)"
    if apart.low > 0 and three <= two:
        return f"{words}. So it gains, and costs nothing."
    if apart.low > 0:
        return f"{words}. So it gains; each right answer more costs {(three - two) / apart.value:,.0f} tokens."
    if apart.interval is not None and apart.interval.high <= 0:
        return f"{words}. So it gains nothing."
    return f"{words}. A gain is not shown: by these questions it is not worth its price."


def standing_cells(one: Standing, found: Comparison, same: Mapping[str, Sequence[Standing]]) -> list[str]:
    """The cells of one standing; see `heads_of`."""
    failed = f" ({one.failed} failed, {_percent(one.of_asked)} of all)" if one.failed else ""
    return [
        row_name(one, same),
        f"{one.right}/{one.answered}{failed}",
        _percent(one.accuracy.value),
        _interval(one.accuracy),
        *(cell for name in found.models for cell in difference_cells(one.differences.get(name))),
        "" if one.acceptance is None else f"{one.acceptance:.0%}",
        "" if one.seconds is None else f"{1000 * one.seconds:,.0f}",
        f"{sum(one.requests.values()):.1f}" if one.answered else "",
        "" if one.billed is None else f"{one.billed:,.0f}",
    ]


def difference_cells(one: PairedDifference | None) -> list[str]:
    """The four cells of a difference: value, interval, questions won and lost, and p."""
    if one is None or not one.counts.total:
        return [""] * 4
    groups = "" if one.groups is None else f" ({one.groups[0]}:{one.groups[1]})"
    return [
        _signed(one.value),
        "" if one.interval is None else _interval(one.interval, signed=True),
        f"{one.counts.won}:{one.counts.lost}{groups}",
        p_in_words(one.p),
    ]


def p_in_words(value: float | None) -> str:
    """A p-value with three digits; empty if there is none."""
    return "" if value is None else f"{value:.3f}" if value >= 0.0005 else "<0.001"


def optional_columns(standings: Sequence[Standing]) -> dict[str, list[str]]:
    """The further columns that these standings fill, by their heads: cached tokens, and the price of 1,000 answers."""
    found: dict[str, list[str]] = {}
    if any(any(one.cached.values()) for one in standings):
        found["cached"] = [f"{sum(one.cached.values()):,.0f}" if one.answered else "" for one in standings]
    if any(one.money is not None for one in standings):
        found["per 1,000"] = ["" if one.money is None else f"{1000 * one.money:,.4g}" for one in standings]
    return found


def failures_counted(failures: Iterable[FailedAnswer]) -> list[tuple[str, str, str]]:
    """The contestants that failed, each with the number of its questions in words, and the reason."""
    why = Counter((one.contestant, one.development, one.error) for one in failures)
    return [
        (name, counted(n, "question") + " that set baselines" * held, error) for (name, held, error), n in why.items()
    ]


def by_reason(left_out: Iterable[LeftOut]) -> dict[str, list[str]]:
    """The names of the contestants that were left out, by the reason."""
    found: dict[str, list[str]] = {}
    for one in left_out:
        found.setdefault(one.reason, []).append(one.name)
    return found


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.1f}"


def _signed(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:+z.1f}"


def _interval(one: Estimated, *, signed: bool = False) -> str:
    if math.isnan(one.value):
        return ""
    sign = "+" if signed else ""
    return f"{100 * one.low:{sign}z.0f} to {100 * one.high:{sign}z.0f}"


def _about_calibration(name: str, one: ModelCalibration) -> str:
    mean, least = one.mean, one.least
    words = f"Calibration of {with_article(name)}: mean probability {mean.confidence:.2f}, right {mean.accuracy:.2f}; "
    words += f"expected calibration error {mean.error:.2f}"
    if least.wrong:
        words += f"; nowhere unsure in {least.confident_wrong} of {counted(least.wrong, 'wrong answer')}"
    return words + "."


def _about_places(one: Standing) -> str:
    found = one.replaced
    if found is None or not found.places:
        return ""
    words = f"  {one.name}: {found.places:,}; the assistant's text was right at {found.assistant}, the draft's at "
    words += f"{found.draft}, neither at {found.neither}, not known at {found.unknown}; of "
    words += f"{counted(found.answers.total, 'answer')} with one, {found.answers.won} put right"
    return f"{words} and {found.answers.lost} spoilt"
