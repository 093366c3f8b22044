"""Advice that follows from a finished comparison: fuse the models, use one of them alone, or undecided."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field

from cosd_api import Fusion, RuleVerifier, SettingError
from cosd_api.comparison.contestants import Contestant, method_of, model_names
from cosd_api.comparison.standings import Standing
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import AnswerOptions, Record, Unit, counted, in_words, with_article
from cosd_api.types import Endpoint
from cosd_providers import Provider, connect

if TYPE_CHECKING:
    from cosd_api.comparison.result import Comparison

WORTH = 0.05
"""Default for the smallest gain in accuracy that makes fusing worthwhile."""

_MANY = 0.25
"""If more than this share of a model's wrong answers is confident, the default rule misses too many errors."""
_POWER = 1.3
"""Factor by which an interval must be shorter than the gain, so that four of five runs show it."""
_LONG = 30  # settings with at least this many characters are left out of a sentence
WIDTH = 110
"""Characters per line, in the report and in a settings file's comment."""


class Doubts(Record):
    """Counts that show how often a model is unsure when it is wrong.

    Attributes:
        answers: number of answers that the model gave alone and whose probabilities are known.
        wrong: number of wrong answers among them.
        sure: number of wrong answers in which every token has a probability of at least `alpha`; a rule with this alpha
            asks no assistant about them.
        alpha: the alpha of the default rule.
    """

    answers: int
    wrong: int
    sure: int
    alpha: float = RuleVerifier().alpha


class Bill(Record):
    """Typical cost of an answer.

    Attributes:
        requests: mean number of requests to all endpoints.
        billed: mean number of tokens that all endpoints read and wrote.
        seconds: median duration of an answer.
        money: mean price; None if no prices are given.
    """

    requests: float
    billed: float
    seconds: float | None = None
    money: float | None = None


class Advice(Record):
    """Advice on whether to fuse two or more models; `str(advice)` puts it into words.

    It is read off the differences of a comparison, whose intervals hold for all ways and models together: if no way to
    fuse is better than the better model, at most 5 of 100 comparisons advise to fuse, however many ways are compared.

    Attributes:
        schema_version: version of this format.
        decision: `"fuse"`; `"alone"` to use one model, because a gain of `worth` is excluded; `"undecided"` if the
            comparison shows neither; or `"unknown"` if it is not complete, or compares no way to fuse.
        model: the better model alone: `"draft"`, `"assistant"` or, with several assistants, a name such as `"assistant
            1"`.
        way: name of the advised way to fuse or, if none is advised, of the way that gains most; None without a way.
        first: index of the model that should draft, in the order given: 0 is the draft.
        settings: the method of the way to fuse, with its settings and its verifier.
        questions: number of test questions.
        tried: number of ways to fuse that were compared.
        worth: the smallest gain in accuracy that makes fusing worthwhile.
        right: number of right answers, for the way to fuse (`"fused"`) and for each model alone.
        accuracy: share of right answers with 95 % intervals, under the same names.
        gain: gain in accuracy over the model over which the way gains least, with its simultaneous interval.
        upper: upper bound of the gains of all ways to fuse.
        more: if `"undecided"`, the approximate number of further questions that would show the gain, or a gain of
            `worth`.
        bills: typical cost of an answer, under the names in `right`.
        doubts: how often each model is unsure when it is wrong, keyed by the model's name.
        draft: the draft's endpoint, as given.
        assistant: the endpoint of the assistant, or of the first of several.
        more_assistants: the endpoints of the other assistants.
        unit: the unit, as it was given.
        limits: limits of the measured answers; the settings file of the advised fusion contains them, too.
        seed: seed for random draws.
        stopped: the reason why the advice is unknown; None otherwise.
    """

    schema_version: Literal[3] = 3
    decision: Literal["fuse", "alone", "undecided", "unknown"]
    model: str
    way: str | None = None
    first: int = 0
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    questions: int
    tried: int
    worth: float = WORTH
    right: dict[str, int] = Field(default_factory=dict[str, int])
    accuracy: dict[str, Estimated] = Field(default_factory=dict[str, Estimated])
    gain: Estimated | None = None
    upper: float | None = None
    more: int | None = None
    bills: dict[str, Bill] = Field(default_factory=dict[str, Bill])
    doubts: dict[str, Doubts] = Field(default_factory=dict[str, Doubts])
    draft: Endpoint
    assistant: Endpoint
    more_assistants: tuple[Endpoint, ...] = ()
    unit: Unit | None = None
    limits: dict[str, Any] = Field(default_factory=dict[str, Any])
    seed: int = 0
    stopped: str | None = None

    def __str__(self) -> str:
        if self.decision == "unknown":
            return f"No advice: {self.stopped}."
        words = {"fuse": _fuse, "alone": _alone, "undecided": _undecided}[self.decision]
        return " ".join([*words(self), *_doubts(self)])

    @property
    def models(self) -> dict[str, Endpoint]:
        """All endpoints, keyed by the names of the models."""
        several = (self.draft, self.assistant, *self.more_assistants)
        return dict(zip(model_names(len(several)), several, strict=True))

    @property
    def order(self) -> list[str]:
        """The names of the models, in the order of the advised fusion."""
        return Contestant("", "method", first=self.first).order([*self.models])

    def fusion(self, *, draft: str | Provider, assistant: str | Provider | Sequence[str | Provider]) -> Fusion:
        """Create the advised fusion; no request is sent yet.

        Args:
            draft: the draft, as it was given to `compare`; if another model should draft, it becomes an assistant.
            assistant: the assistant, as it was given to `compare`, or all of the assistants in the same order.

        Raises:
            SettingError: the advice is not to fuse; the number of models differs from the advice; or the method has a
                user-defined part, which the advice does not contain.
        """
        if self.decision != "fuse":
            words = {"alone": f"use {with_article(self.model)} alone", "undecided": "undecided"}
            reason = words.get(self.decision, f"unknown, as {self.stopped}")
            raise SettingError(f"the advice is not to fuse these models ({reason}): there are no settings of a fusion")
        others = [assistant] if isinstance(assistant, str | Provider) else [*assistant]
        if 1 + len(others) != len(self.models):
            count = f"the advice is on {len(self.models)} models, not {1 + len(others)}"
            raise SettingError(f"{count}: give the draft and the assistants as they were given to compare")
        way = Contestant(self.way or "", "method", method_of(self.settings), self.first)
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


def advice_on(found: Comparison, worth: float) -> Advice:
    """Read the advice off the differences of a comparison; see `Advice`."""
    names = [*found.models]
    ways = [
        one
        for one in found.standings
        if one.kind == "method" and one.without is None and one.differences
        if all(apart.interval is not None for apart in one.differences.values())
    ]
    best = _advised([one for one in ways if one.better_than_all], found)
    stopped = found.stopped
    if stopped is None and not ways:
        stopped = "no way to fuse these models has answered"
    decision: Literal["fuse", "alone", "undecided", "unknown"] = "unknown"
    if stopped is None:
        decision = "fuse" if best is not None else "alone" if _upper(ways) < worth else "undecided"
    chosen = best or max(ways, key=lambda one: _gain(one).value, default=None)
    about = {"fused": chosen, **{name: found[name] for name in names}}
    known = {name: one for name, one in about.items() if one is not None and one.answered}
    fields: dict[str, Any] = {}
    if chosen is not None:
        gain = _gain(chosen)
        more = max(0.0, ((gain.high - gain.low) / 2 * _POWER / max(worth, gain.value)) ** 2 - 1)
        fields = {
            "way": chosen.name,
            "first": names.index(chosen.first) if chosen.first else int(chosen.reverse),
            "settings": chosen.settings,
            "gain": gain,
            "upper": _upper(ways),
            "more": math.ceil(more * found.questions) if decision == "undecided" else None,
        }
    return Advice(
        decision=decision,
        model=found.better,
        **fields,
        questions=found.questions,
        tried=len(ways),
        worth=worth,
        right={name: one.right for name, one in known.items()},
        accuracy={name: one.accuracy for name, one in known.items()},
        bills={name: _bill(found, one) for name, one in known.items()},
        doubts={
            name: Doubts(
                answers=one.least.answers, wrong=one.least.wrong, sure=one.least.confident_wrong, alpha=one.least.alpha
            )
            for name, one in found.calibration.items()
        },
        draft=found.draft,
        assistant=found.assistant,
        more_assistants=found.more_assistants,
        unit=found.unit,
        limits={"max_tokens": found.max_tokens, **({"stop": [*found.stop]} if found.stop else {})},
        seed=found.seed,
        stopped=stopped,
    )


def _gain(one: Standing) -> Estimated:
    """The gain over the model over which a way gains least."""
    apart = min(one.differences.values(), key=lambda apart: apart.value)
    assert apart.interval is not None
    return Estimated(apart.value, apart.low, apart.interval.high)


def _upper(ways: Sequence[Standing]) -> float:
    """The upper bound of the gains of all ways: each cannot gain more than it may gain over some model."""
    return max(
        min(
            max(end.high for end in (apart.interval, apart.bounded) if end is not None)
            for apart in one.differences.values()
        )
        for one in ways
    )


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


def _bill(found: Comparison, one: Standing) -> Bill:
    seconds = [known.seconds for known in found.answers_of(one.name).values() if known.seconds is not None]
    return Bill(
        requests=sum(one.requests.values()),
        billed=one.billed or 0,
        seconds=statistics.median(seconds) if seconds else None,
        money=one.money,
    )


# Words.


def _fuse(advice: Advice) -> Iterator[str]:
    first, *others = (f"{with_article(name)} ({advice.models[name].model})" for name in advice.order)
    assert advice.gain is not None
    yield "Fuse them."
    yield f"Let {first} draft and {in_words(others)} assist, by {_method(advice)}."
    yield (
        f"That gains at least {_points(advice.gain.low)} over the better model alone ({with_article(advice.model)}): "
        f"of {counted(advice.questions, 'question')} it had {_right(advice, 'fused')} right, and that model "
        f"{_right(advice, advice.model)}."
    )
    yield (
        f"The error is at most 5 %, with {counted(advice.tried, 'way')} counted; the gain seen, "
        f"{_signed(advice.gain.value)}, tends to be too large, as it was picked for being large."
    )
    yield from _cost(advice)


def _alone(advice: Advice) -> Iterator[str]:
    assert advice.gain is not None and advice.upper is not None
    gain = advice.gain.value
    seen = f"is {_points(-gain)} behind" if gain < 0 else f"seems to gain {_points(gain)}" if gain else "gains nothing"
    most = f", and none gains more than {_points(advice.upper)}" if advice.upper >= 0 else ""
    yield f"Use {with_article(advice.model)} ({advice.models[advice.model].model}) alone."
    yield (
        f"No way to fuse gains {_points(advice.worth)} or more: the best of {advice.tried}, {_method(advice)}, "
        f"{seen}{most}."
    )
    yield from _rights(advice)


def _undecided(advice: Advice) -> Iterator[str]:
    assert advice.gain is not None
    gain, tried = advice.gain, counted(advice.tried, "way")
    yield f"Undecided. Use {with_article(advice.model)} ({advice.models[advice.model].model}) alone for now."
    yield (
        f"Of {tried} to fuse the best is {_method(advice)}, with {_right(advice, 'fused')} of "
        f"{counted(advice.questions, 'question')} right: {_signed(gain.value)}, between {_signed(gain.low)} and "
        f"{_signed(gain.high)} points. With an error of at most 5 % ({tried} counted) that shows no gain, and it does "
        f"not exclude one of {_points(advice.worth)}."
    )
    yield from _rights(advice)
    if advice.more:
        yield f"About {_rounded(advice.more)} more questions would decide: add them to the file and ask again."


def _rights(advice: Advice) -> Iterator[str]:
    others = [f"{with_article(name)} alone {_right(advice, name)}" for name in advice.models if name != advice.model]
    mine = f"{with_article(advice.model)} alone had {_right(advice, advice.model)} right"
    yield f"Of {counted(advice.questions, 'question')} {mine}, {in_words(others)}."


def _right(advice: Advice, name: str) -> str:
    if name not in advice.right:
        return "none"
    return f"{advice.right[name]} ({advice.accuracy[name].value:.0%})"


def _number(share: float) -> str:
    points = 100 * share
    return f"{points:.0f}" if abs(points) >= 1 or not round(points, 1) else f"{points:.1f}"


def _points(share: float) -> str:
    shown = _number(share)
    return f"{shown} point{'' if shown == '1' else 's'}"


def _signed(share: float) -> str:
    shown = _number(share).removeprefix("-")
    return f"{'-' if share < 0 and shown != '0' else '+'}{shown}"


def _rounded(number: int) -> str:
    """Round up to two significant digits, because the estimate is no more precise."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return f"{-(-number // unit) * unit:,}"


def _method(advice: Advice) -> str:
    """The method and its settings in words; settings with long values are left out."""
    settings = advice.settings
    name, own = str(settings["method"]), dict(settings.get("options") or {})
    if (verifier := settings.get("verifier")) is not None:
        name = f"{name} with the verifier {verifier['kind']}"
        own = {one: value for one, value in verifier.items() if one not in ("kind", "schema_version")}
    shown = [f"{one}={_shown(value)}" for one, value in own.items() if value is not None and len(str(value)) < _LONG]
    return f"{name} ({', '.join(shown)})" if shown else name


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cost(advice: Advice) -> Iterator[str]:
    fused, alone = advice.bills.get("fused"), advice.bills.get(advice.model)
    if fused is None or alone is None:
        return
    words = f"An answer takes {fused.requests:.1f} requests and bills {fused.billed:.0f} tokens"
    if alone.billed:
        words += f", {fused.billed / alone.billed:.1f} times those of {with_article(advice.model)} alone"
    if fused.seconds and alone.seconds:
        words += f", and {fused.seconds / alone.seconds:.1f} times its time"
    if fused.money is not None and alone.money is not None:
        words += f"; a thousand answers cost {1000 * fused.money:.2f}, and {1000 * alone.money:.2f} alone"
    yield f"{words}."


def _doubts(advice: Advice) -> Iterator[str]:
    """Yield sentences that say whether the models are unsure when they are wrong, and what to try if they are sure."""
    missed: list[str] = []
    alpha = next((f"{one.alpha:g}" for one in advice.doubts.values()), "")
    for name in advice.models:
        one, subject = advice.doubts.get(name), with_article(name).capitalize()
        if one is None:
            yield f"{subject} does not report its probabilities: where it doubts is not known."
        elif one.wrong:
            yield (
                f"{subject} alone was wrong in {one.wrong} of {counted(one.answers, 'answer')}, and in "
                f"{one.sure} of these it was sure of every token ({one.alpha:g} or more)."
            )
            if one.sure > _MANY * one.wrong:
                missed.append(name)
    if not missed:
        if any(one.wrong for one in advice.doubts.values()):
            yield f"So the doubts are where the errors are, as a rule with alpha = {alpha} needs."
        return
    who = in_words([with_article(name) for name in missed])
    yield (
        f"If {who} {'draft' if len(missed) > 1 else 'drafts'}, a rule with alpha = {alpha} asks no assistant about "
        "these errors; alpha = beta = 1, surprise and average look there, too."
    )
