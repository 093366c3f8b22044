"""The result of `compare`: `Comparison`, with the standing of each contestant, and the advice that follows from it."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

from pydantic import Field

from cosd_api import Example, SettingError, __version__
from cosd_api.apps.comparison.contestants import COSD, ORACLE, Contestant, ContestantKind, LeftOut, model_names
from cosd_api.apps.comparison.graders import group_of
from cosd_api.apps.comparison.journal import AnswerUsage, GradedAnswer
from cosd_api.apps.comparison.prices import Price
from cosd_api.apps.comparison.statistics import Estimated, Joint, Outcomes, PairedDifference, wilson
from cosd_api.apps.comparison.tables import comparison_report
from cosd_api.checks import check_between
from cosd_api.common.wording import counted, in_words, with_article
from cosd_api.extend import Record, Unit
from cosd_api.methods import METHODS, method_named
from cosd_api.types import Endpoint
from cosd_api.verification import KINDS, numbers_of

Decision = Literal["fuse", "alone", "undecided", "unknown"]

WORTH = 0.05
"""Default for the smallest gain in accuracy that makes fusing worthwhile."""
_POWER = 1.3
"""Factor by which an interval must be shorter than the gain, so that four of five runs show it."""
_LONG = 30  # settings with at least this many characters are left out of a sentence
Answers = Mapping[str, Mapping[str, GradedAnswer]]
"""Graded answers, keyed by contestant, then by question."""


class Standing(Record):
    """The result of one contestant on the test questions.

    Costs are means per answer. The costs of single endpoints are keyed by the user's names for the models: `"draft"`
    and `"assistant"` (or `"assistant 1"` and so on).

    Attributes:
        reverse: whether an assistant drafts, or is listed first.
        first: the name of the model that drafts, or is listed first, if there are several assistants.
        settings: the method's name, settings and verifier; empty if the answers are derived from other contestants.
        answered: number of questions with a graded answer.
        accuracy: share of right answers, with its 95 % interval.
        differences: paired differences from each other model alone, by the model's name.
        ceiling: difference from the oracle, which no method that outputs one model's answer exceeds. `won` counts the
            *rescued* questions, which no model answered right; `lost` those that a model did. None for the models.
        acceptance: share of the draft's tokens that were kept; None if the method judges no draft.
        seconds: median duration of an answer.
        tokens: number of tokens of an answer.
        cached: number of tokens read from the server's cache, as far as the server reports them.
        money: price of an answer; None if no prices are given.
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
    ceiling: PairedDifference | None = None
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
        question: key of the question (`Example.key`).
        development: whether it is a development question, which counts in no standing.
    """

    contestant: str
    question: str
    error: str
    development: bool = False


class Advice(Record):
    """Advice on whether to fuse two or more models; `str(advice)` puts it into words.

    It is read off the differences of a comparison, whose intervals hold for all ways and models together: if no way to
    fuse is better than the better model, at most 5 of 100 comparisons advise to fuse, however many ways are compared.

    Attributes:
        decision: `"fuse"`; `"alone"` to use one model, because a gain of `worth` is excluded; `"undecided"` if the
            comparison shows neither; or `"unknown"` if it is not complete, or compares no way to fuse.
        model: the better model alone, as in `Comparison.better`.
        way: name of the advised way to fuse or, if none is advised, of the way that gains most; None without a way.
        tried: number of ways to fuse that were compared.
        worth: the smallest gain in accuracy that makes fusing worthwhile.
        gain: gain in accuracy over the model over which the way gains least, with its simultaneous interval.
        upper: upper bound of the gains of all ways to fuse.
        more: if `"undecided"`, the approximate number of further questions that would decide.
    """

    schema_version: Literal[4] = 4
    decision: Decision
    words: str
    model: str
    way: str | None = None
    tried: int
    worth: float = WORTH
    gain: Estimated | None = None
    upper: float | None = None
    more: int | None = None

    def __str__(self) -> str:
        return self.words


class Comparison(Record):
    """A comparison of two or more models alone, every way to fuse them, and baselines, all on the same questions.

    All standings are measured on the test questions. The settings of two baselines, the random gate and
    self-consistency, depend on answers. They are determined on development questions, which are held out from the test:
    the questions with the smallest hashes (`Example.key`), a share of all questions, but at least one.

    Attributes:
        assistant: the assistant endpoint, or the first of several.
        questions: number of test questions.
        groups: the group (`Example.group`) of each question that has one, keyed by the question's key.
        development: keys (`Example.key`) of the development questions, which set the baselines.
        better: the model with the most right answers to the test questions that all models have answered: `"draft"`,
            `"assistant"` or, with several assistants, a name such as `"assistant 1"`. Ties go to the model that billed
            fewer tokens, then to the draft.
        standings: standings of all contestants: first the models, then the oracle, the ways to fuse and the other
            baselines.
        stopped: the reason why the comparison is not complete; None if it is complete.
        billed_tokens: tokens billed for this comparison, including earlier runs with the same journal.
        spent_tokens: tokens billed in this run only.
        answers: all answers, including those to the development questions.
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
    def beta(self) -> Estimated:
        """The share of questions that all models get wrong, with its 95 % interval (Wilson's, by groups).

        A router, vote, cascade or judge outputs one of the models' answers, so at most a share of 1 - beta is right.
        """
        cap = self[ORACLE].accuracy
        return Estimated(1 - cap.value, 1 - cap.high, 1 - cap.low)

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
        return comparison_report(self, self.advice())

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
    ways = [one.name for one in found if one.kind in ("method", "baseline") and one.answered]
    joint = Joint(outcomes, ways)
    above = Joint(outcomes, ways, [ORACLE])  # another question, which does not widen the other intervals
    compared = [
        one.model_copy(
            update={
                "differences": {name: joint.difference(one.name, name) for name in models if name != one.name},
                "ceiling": above.difference(one.name, ORACLE) if one.name in ways else None,
            }
        )
        for one in found
    ]
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
        "money": prices and sum(prices[name].of(read[name], written[name]) for name in read),
    }


# Advice.


def advice_on(found: Comparison, worth: float) -> Advice:
    """Read the advice off the differences of a comparison; see `Advice`."""
    ways = [
        one
        for one in found.standings
        if one.kind == "method" and one.differences
        if all(apart.interval is not None for apart in one.differences.values())
    ]
    if found.stopped is not None or not ways:
        reason = found.stopped or "no way to fuse these models has answered"
        words = f"No advice: {reason}."
        return Advice(decision="unknown", words=words, model=found.better, tried=len(ways), worth=worth)
    best = _advised([one for one in ways if one.better_than_all], found)
    chosen = best or max(ways, key=lambda one: _gain(one).value)
    decision: Decision
    gain, upper, more = _gain(chosen), max(map(_most, ways)), None
    if best is not None:
        decision, sentences = "fuse", _fuse(found, chosen, gain, len(ways))
    elif upper < worth:
        decision, sentences = "alone", _alone(found, chosen, gain, len(ways), worth, upper)
    else:
        share = max(0.0, ((gain.high - gain.low) / 2 * _POWER / max(worth, gain.value)) ** 2 - 1)
        more = math.ceil(share * found.questions)
        decision, sentences = "undecided", _undecided(found, chosen, gain, len(ways), worth, more)
    return Advice(
        decision=decision,
        words=" ".join([*islice(sentences, 2), *_ceiling(chosen), *sentences]),
        model=found.better,
        way=chosen.name,
        tried=len(ways),
        worth=worth,
        gain=gain,
        upper=upper,
        more=more,
    )


def _gain(one: Standing) -> Estimated:
    """The gain over the model over which a way gains least."""
    apart = min(one.differences.values(), key=lambda apart: apart.value)
    assert apart.interval is not None
    return Estimated(apart.value, apart.low, apart.interval.high)


def _most(one: Standing) -> float:
    """The upper bound of the gain: a way cannot gain more than it may gain over some model."""
    several = one.differences.values()
    return min(max(end.high for end in (apart.interval, apart.bounded) if end is not None) for apart in several)


def _advised(ways: Sequence[Standing], found: Comparison) -> Standing | None:
    """The cheapest way that is within one standard error of the way that gains most."""
    if not ways:
        return None
    lead = max(ways, key=lambda one: (one.right, -(one.billed or 0)))
    mine = {key: one.right for key, one in found.answers_of(lead.name).items()}

    def near(one: Standing) -> bool:
        theirs = found.answers_of(one.name)
        differ = sum(key in theirs and theirs[key].right != right for key, right in mine.items())
        return lead.right - one.right <= math.sqrt(differ)

    return min((one for one in ways if near(one)), key=lambda one: (one.billed or 0, -one.right))


# Its words.


def _fuse(found: Comparison, chosen: Standing, gain: Estimated, tried: int) -> Iterator[str]:
    names, alone = [*found.models], found[found.better]
    order = Contestant("", "method", first=chosen.place(names)).order(names)
    first, *others = (f"{with_article(name)} ({found.models[name].model})" for name in order)
    yield f"Fuse them. Let {first} draft and {in_words(others)} assist, by {_method(chosen)}."
    yield (
        f"That gains at least {_points(gain.low)} over the better model alone ({with_article(found.better)}): "
        f"of {counted(found.questions, 'question')} it had {_right(chosen)} right, and that model {_right(alone)}."
    )
    yield (
        f"The error is at most 5 %, with {counted(tried, 'way')} counted; the gain seen, {_signed(gain.value)}, tends "
        "to be too large, as it was picked for being large."
    )
    words = f"An answer takes {sum(chosen.requests.values()):.1f} requests and bills {chosen.billed or 0:.0f} tokens"
    if alone.billed:
        words += f", {(chosen.billed or 0) / alone.billed:.1f} times those of {with_article(found.better)} alone"
    if chosen.seconds and alone.seconds:
        words += f", and {chosen.seconds / alone.seconds:.1f} times its time"
    if chosen.money is not None and alone.money is not None:
        words += f"; a thousand answers cost {1000 * chosen.money:.2f}, and {1000 * alone.money:.2f} alone"
    yield f"{words}."
    if options := _options(chosen, found.unit):
        yield f"The options of cosd fuse for this method are {options}."


def _alone(
    found: Comparison, chosen: Standing, gain: Estimated, tried: int, worth: float, upper: float
) -> Iterator[str]:
    seen = f"seems to gain {_points(gain.value)}" if gain.value else "gains nothing"
    if gain.value < 0:
        seen = f"is {_points(-gain.value)} behind"
    most = f", and none gains more than {_points(upper)}" if upper >= 0 else ""
    yield f"Use {with_article(found.better)} ({found.models[found.better].model}) alone."
    yield f"No way to fuse gains {_points(worth)} or more: the best of {tried}, {_method(chosen)}, {seen}{most}."
    yield _rights(found)


def _undecided(
    found: Comparison, chosen: Standing, gain: Estimated, tried: int, worth: float, more: int
) -> Iterator[str]:
    ways = counted(tried, "way")
    yield f"Undecided. Use {with_article(found.better)} ({found.models[found.better].model}) alone for now."
    yield (
        f"Of {ways} to fuse the best is {_method(chosen)}, with {_right(chosen)} of "
        f"{counted(found.questions, 'question')} right: {_signed(gain.value)}, between {_signed(gain.low)} and "
        f"{_signed(gain.high)} points. With an error of at most 5 % ({ways} counted) that shows no gain, and it does "
        f"not exclude one of {_points(worth)}."
    )
    yield _rights(found)
    if more:
        unit = 10 ** max(0, len(str(more)) - 2)  # two digits, because the estimate is no more precise
        yield f"About {-(-more // unit) * unit:,} more questions would decide: add them to the file and ask again."


def _ceiling(chosen: Standing) -> Iterator[str]:
    """Compare a way with what no router, vote or cascade can exceed."""
    apart = chosen.ceiling
    if apart is None or apart.interval is None:
        return
    counts, low, high = apart.counts, apart.low, apart.interval.high
    verdict = "above the ceiling" if low > 0 else "below the ceiling" if high < 0 else "no difference"
    cap, mine = (f"{100 * (counts.both + more) / counts.total:.1f} %" for more in (counts.lost, counts.won))
    yield (
        f"Methods that output one model's whole answer are capped at {cap} here; this way has {mine}, by rescuing "
        f"{counts.won} that all models get wrong and losing {counts.lost}: {verdict}."
    )


def _rights(found: Comparison) -> str:
    others = [f"{with_article(name)} alone {_right(found[name])}" for name in found.models if name != found.better]
    mine = f"{with_article(found.better)} alone had {_right(found[found.better])} right"
    return f"Of {counted(found.questions, 'question')} {mine}, {in_words(others)}."


def _right(one: Standing) -> str:
    return f"{one.right} ({one.accuracy.value:.0%})" if one.answered else "none"


def _number(share: float) -> str:
    points = 100 * share
    return f"{points:.0f}" if abs(points) >= 1 or not round(points, 1) else f"{points:.1f}"


def _points(share: float) -> str:
    shown = _number(share)
    return f"{shown} point{'' if shown == '1' else 's'}"


def _signed(share: float) -> str:
    shown = _number(share).removeprefix("-")
    return f"{'-' if share < 0 and shown != '0' else '+'}{shown}"


def _method(one: Standing) -> str:
    """The method and its settings in words; settings with long values are left out."""
    name, own = str(one.settings["method"]), dict(one.settings.get("options") or {})
    if (verifier := one.settings.get("verifier")) is not None:
        name = f"{name} with the verifier {verifier['kind']}"
        own = {key: value for key, value in verifier.items() if key not in ("kind", "schema_version")}
    shown = [
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in own.items()
        if value is not None and len(str(value)) < _LONG
    ]
    return f"{name} ({', '.join(shown)})" if shown else name


def _options(one: Standing, unit: Unit | None) -> str:
    """The options of `cosd fuse` that choose the method of a way; empty if options cannot express its settings.

    `unit` is the unit of the whole comparison, for ways of CoSD that have none of their own.
    """
    name, own = str(one.settings["method"]), dict(one.settings.get("options") or {})
    if name not in METHODS:
        return ""
    if name != COSD:
        try:
            usual = method_named(name).options()
        except SettingError:  # a gate, which has no default
            return ""
        chosen = [f"--set {key}={_argument(value)}" for key, value in own.items() if value != usual.get(key)]
        return " ".join([f"--method {name}", *chosen])
    verifier = one.settings["verifier"]
    numbers = numbers_of(verifier["kind"]) if verifier["kind"] in KINDS else None
    if numbers is None:
        return ""
    given = {"verifier": verifier["kind"], **{key: verifier[key] for key in numbers}}
    more = {"unit": one.settings.get("unit") or unit, "temperature": one.settings.get("temperature")}
    given |= {key: value for key, value in more.items() if value}
    return " ".join(f"--{key} {_argument(value)}" for key, value in given.items())


def _argument(value: Any) -> str:
    """A setting as an argument on the command line."""
    listed = type(value).__name__ == "list"
    return shlex.quote(",".join(map(str, value)) if listed else str(value))
