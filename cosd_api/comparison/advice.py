"""Advice on two or more models: whether to fuse them, how, what to expect, or which of them to use alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Annotated, Any, Literal, Unpack, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from cosd_api.alignment import Unit
from cosd_api.comparison.asking import Asking
from cosd_api.comparison.choice import CHOOSING, ChosenWay, Outcomes, choose, decided, parts, trial_of
from cosd_api.comparison.contestants import Contestant, LeftOut, model_names
from cosd_api.comparison.forecast import with_test
from cosd_api.comparison.gathering import comparison_so_far
from cosd_api.comparison.prices import ComparisonEstimate
from cosd_api.comparison.questions import questions_by_key
from cosd_api.comparison.result import Comparison
from cosd_api.comparison.run import DRY, opened
from cosd_api.comparison.settings import ComparisonOptions, ComparisonSettings
from cosd_api.comparison.statistics import Estimated, wilson
from cosd_api.errors import SettingError
from cosd_api.fusion import Fusion
from cosd_api.methods.base import Method, method_named
from cosd_api.methods.cosd import CoSD
from cosd_api.records import Endpoint, Record
from cosd_api.settings import AnswerOptions, refuse, spell_out
from cosd_api.training.dataset import Example
from cosd_api.verification import KnownVerifier
from cosd_api.version import __version__
from cosd_api.wording import the
from cosd_providers import connect
from cosd_providers.contract import Provider

__all__ = ["Advice", "Bill", "Doubts", "advice_of", "advise"]

_WIDTH = 110  # characters of a line of the comment in a settings file


class Doubts(Record):
    """Place of one model's doubts: of its wrong answers, those in which it was nowhere unsure.

    Attributes:
        answers: its answers alone whose probabilities are known.
        wrong: those that are wrong.
        sure: those of the wrong ones in which every token has a probability of at least 0.5: there the paper's rule
            asks nobody.
    """

    answers: int
    wrong: int
    sure: int


class Bill(Record):
    """Mean cost of an answer.

    Attributes:
        requests: to all endpoints.
        billed: tokens read and written by all.
        seconds: the median duration.
        money: with prices.
    """

    requests: float
    billed: float
    seconds: float | None = None
    money: float | None = None


class Advice(Record):
    """Advice on two or more models. `str(advice)` is it in words.

    The questions are cut in two: the first part chooses the way to fuse with the most right answers, the second tests
    that one against each model alone. So the gain is not inflated by the choice among many, and models that do not
    gain are advised to be fused at most one time in forty: see `cosd_api.comparison.choice`.

    Attributes:
        schema_version: version of this format.
        decision: `"fuse"`; `"alone"`, to use one model; `"unknown"` where it was stopped before.
        model: the better model alone, by all questions: `"draft"`, `"assistant"`, or of several `"assistant 1"`, say.
        way: the way to fuse that was chosen and tested, by its name in a comparison; None where none seemed better.
        reverse: whether an assistant, as given, is to draft.
        first: the name of the model that is to draft, where there are several assistants.
        settings: the way's method, its settings and its verifier.
        tried: number of ways that there were to choose from.
        chose: number of questions that chose.
        others: number of the others, which test a way where there is one.
        tested: number of those that tested it: all models have answered them.
        right: right answers to these, of the way (`"fused"`) and of each model alone.
        accuracy: the same as shares, with their 95 % intervals.
        gain: in accuracy over the better model on these, with its 95 % interval; None without a test.
        p: the largest p-value of McNemar's exact test against each of the models.
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
        parts: the comparisons that it is made of, without the answers: of the questions that chose and of those that
            tested, or the one comparison that advised.
        library_version: of cosd-api.
    """

    schema_version: Literal[1] = 1
    decision: Literal["fuse", "alone", "unknown"]
    model: str
    way: str | None = None
    reverse: bool = False
    first: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    tried: int
    chose: int
    others: int
    tested: int = 0
    right: dict[str, int] = Field(default_factory=dict[str, int])
    accuracy: dict[str, Estimated] = Field(default_factory=dict[str, Estimated])
    gain: Estimated | None = None
    p: float | None = None
    bills: dict[str, Bill] = Field(default_factory=dict[str, Bill])
    doubts: dict[str, Doubts] = Field(default_factory=dict[str, Doubts])
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
    parts: tuple[Comparison, ...] = ()
    library_version: str = __version__

    def __str__(self) -> str:
        from cosd_api.comparison.advice_words import advice_words  # noqa: PLC0415 - it is about this class

        return advice_words(self)

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
            words = f"use {the(self.model)} alone" if self.decision == "alone" else "unknown, as it was stopped"
            raise SettingError(f"the advice is not to fuse these models ({words}): there are no settings of a fusion")
        others = [assistant] if isinstance(assistant, str | Provider) else [*assistant]
        if 1 + len(others) != len(self.models):
            words = f"the advice is on {len(self.models)} models, not {1 + len(others)}"
            raise SettingError(f"{words}: give the draft and the assistants as they were given to advise")
        way = Contestant(self.way or "", "method", _method(self.settings), self._first())
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


@spell_out(ComparisonOptions, ComparisonSettings)
async def advise(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    choosing: float = CHOOSING,
    **settings: Unpack[ComparisonOptions],
) -> Advice:
    """Find out from some questions, better a hundred than fewer, if models are to be fused, and how.

    Every way to fuse answers the part of the questions that chooses; then the one chosen and each model alone answer
    the rest. So it costs less than half of a comparison of everything. `Comparison.advice` advises by a comparison that
    was made.

    Args:
        examples: as for `compare`; 20 at least.
        draft: URL of a server, or a provider.
        assistant: the same, or several of them; with these every way fuses all models.
        methods: the ways to choose from, as for `compare`.
        both_ways: whether an assistant may draft, too.
        choosing: share of the questions that choose, from 0.1 to 0.9.
        grader: as for `compare`, like all that follow.
        path: a JSON lines file for the answers: the same call resumes.
        max_tokens: limit for each answer.
        stop: strings; an answer ends before the first one.
        seed: of what is drawn.
        unit: as in `Fusion`.
        concurrency: number of answers at the same time.
        max_billed_tokens: tokens that all of it may bill.
        prices: of a million tokens at each endpoint.
        confirm: called once with the estimate of both parts, before anything is asked; see `ComparisonEstimate`.
        progress: called at first and after each answer.
        dry_run: end after the estimate; see `compare`.

    Returns:
        The advice; `stopped` says why there is none yet.

    Raises:
        SettingError: an argument is invalid, or there are too few questions.
        ProviderError: see `compare`.
        OSError: the file cannot be read or written.
    """
    refuse(settings, advise)
    given = ComparisonSettings.checked(**settings)
    by_key = questions_by_key(examples)
    first, second = ([by_key[key] for key in keys] for keys in parts(by_key, choosing))
    async with opened([*by_key.values()], draft=draft, assistant=assistant, settings=given) as run:
        run.expect(first, run.tested)
        if given.confirm is not None and not given.confirm(await _beforehand(run, first, second)):
            run.stopped = "it was not confirmed"
        if given.dry_run:
            run.stopped = DRY
        else:
            await run.ask(first, run.tested)
        before = comparison_so_far(run, [], first, run.tested)
        way = choose(outcomes_of(before)) if run.stopped is None else None
        if way is None:
            return _advice([before], ChosenWay(None, _tried(before), len(first), len(second), None))
        testing = [one for one in run.contestants if one.kind == "alone" or one.name == way]
        run.expect(second, testing)
        await run.ask(second, testing)
        after = comparison_so_far(run, [], second, testing)
        trial = trial_of(outcomes_of(after), way) if run.stopped is None else None
        return _advice([before, after], ChosenWay(way, _tried(before), len(first), len(second), trial))


async def _beforehand(run: Asking, first: Sequence[Example], second: Sequence[Example]) -> ComparisonEstimate:
    """The cost of both parts; where the first is known and graded, that of the way that it has chosen."""
    models, ways = ([one for one in run.tested if (one.kind == "alone") is which] for which in (True, False))
    estimate = await run.forecast(run.tested, first)
    if not estimate.answers:
        await run.grade(first, run.tested)
    certain = all(len(run.answered(one, first)) == len(first) for one in run.tested)
    if certain:
        name = choose(outcomes_of(comparison_so_far(run, [], first, run.tested)))
        ways = [one for one in ways if one.name == name]
    if not ways:
        return estimate
    alone_there = await run.forecast(models, second)
    each = [await run.forecast([one], second) for one in ways]
    return with_test(estimate, alone_there, each, certain=certain)


def advice_of(comparison: Comparison, *, choosing: float = CHOOSING) -> Advice:
    """Advice by a comparison; see `Comparison.advice`."""
    outcomes = outcomes_of(comparison)
    if comparison.stopped is None:
        return _advice([comparison], decided(outcomes, choosing))
    return _advice([comparison], ChosenWay(None, len(outcomes.ways), 0, 0, None))


def outcomes_of(comparison: Comparison) -> Outcomes:
    """The outcomes of the test questions of a comparison."""

    def right(name: str) -> dict[str, bool]:
        return {key: bool(one.right) for key, one in comparison.answers_of(name).items()}

    ways = [one.name for one in comparison.standings if one.kind == "method"]
    billed = {one.name: one.billed for one in comparison.standings if one.billed is not None}
    return Outcomes({name: right(name) for name in comparison.models}, {name: right(name) for name in ways}, billed)


def _tried(comparison: Comparison) -> int:
    return sum(one.kind == "method" for one in comparison.standings)


def _advice(comparisons: Sequence[Comparison], choice: ChosenWay) -> Advice:
    """The advice of a choice; the last of the comparisons tested it."""
    last, trial = comparisons[-1], choice.trial
    stopped = next((one.stopped for one in comparisons if one.stopped is not None), None)
    together = [outcomes_of(one) for one in comparisons]
    alone = {name: _merged(one.alone[name] for one in together) for name in last.models}
    models = Outcomes(alone, {}, together[-1].billed)
    model = models.better()
    fields: dict[str, Any] = {"right": {}, "accuracy": {}}
    for name in alone:
        right = models.right(name)
        fields["right"][name], fields["accuracy"][name] = right, wilson(right, len(models.questions))
    if choice.way is not None:
        standing = last[choice.way]
        fields |= {"way": choice.way, "reverse": standing.reverse, "settings": standing.settings}
        fields["first"] = standing.first
    if trial is not None:
        total = trial.counts.total
        fields |= {"tested": total, "gain": trial.gain, "p": trial.p, "model": trial.against if trial.fuse else model}
        fields["right"] = {name: round(one.value * total) for name, one in trial.alone.items()}
        fields["right"]["fused"] = round(trial.accuracy.value * total)
        fields["accuracy"] = {**trial.alone, "fused": trial.accuracy}
    known: dict[str, Any] = {
        "decision": "unknown" if stopped else "fuse" if trial is not None and trial.fuse else "alone",
        "model": model,
        "tried": choice.tried,
        "chose": choice.chose,
        "others": choice.others,
        "bills": _bills(last, choice.way),
        "doubts": _doubts(comparisons),
        "draft": last.draft,
        "assistant": last.assistant,
        "more_assistants": last.more_assistants,
        "grader": last.grader,
        "unit": last.unit,
        "limits": {"max_tokens": last.max_tokens, **({"stop": [*last.stop]} if last.stop else {})},
        "seed": last.seed,
        "left_out": comparisons[0].left_out,
        "stopped": stopped,
        "billed_tokens": last.billed_tokens,
        "parts": tuple(one.model_copy(update={"answers": ()}) for one in comparisons),
        **fields,
    }
    return Advice(**known)


def _merged(several: Iterable[Mapping[str, bool]]) -> dict[str, bool]:
    return {key: one for right in several for key, one in right.items()}


def _bills(comparison: Comparison, way: str | None) -> dict[str, Bill]:
    """The cost of an answer by each model alone, and of one by the way that was chosen."""
    found: dict[str, Bill] = {}
    for name, standing in (*((name, name) for name in comparison.models), ("fused", way)):
        one = next((one for one in comparison.standings if one.name == standing), None)
        if one is not None and one.billed is not None:
            requests = sum(one.requests.values())
            found[name] = Bill(requests=requests, billed=one.billed, seconds=one.seconds, money=one.money)
    return found


def _doubts(comparisons: Sequence[Comparison]) -> dict[str, Doubts]:
    """The doubts of each model, in all of its answers alone."""
    found: dict[str, Doubts] = {}
    for name in comparisons[-1].models:
        known = [one.calibration[name].least for one in comparisons if name in one.calibration]
        if known:
            sums = (sum(one.answers for one in known), sum(one.wrong for one in known))
            found[name] = Doubts(answers=sums[0], wrong=sums[1], sure=sum(one.confident_wrong for one in known))
    return found


_VERIFIER = TypeAdapter[Any](Annotated[KnownVerifier, Field(discriminator="kind")], config=ConfigDict(defer_build=True))


def _method(settings: Mapping[str, Any]) -> Method:
    """The method of a standing's settings.

    Raises:
        SettingError: it has a verifier of the user's own.
    """
    if settings["method"] != CoSD.name:
        return method_named(settings["method"], **settings["options"])
    try:
        verifier = _VERIFIER.validate_python(settings["verifier"])
    except ValidationError:
        words = "the method that is advised has a verifier of your own, which is not in the advice"
        raise SettingError(f"{words}: make the fusion with CoSD(verifier=...)") from None
    return CoSD(verifier=verifier, unit=settings.get("unit"), temperature=settings.get("temperature") or 0.0)
