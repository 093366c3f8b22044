"""Advice on whether and how to fuse models, derived from counts of right answers; the test is in `looks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from cosd_api import RuleVerifier
from cosd_api.comparison.looks import WORTH, Outcomes, SequentialTest, WaySeen
from cosd_api.comparison.statistics import Estimated, wilson
from cosd_api.extend import Record, counted, in_words, with_article


class Doubts(Record):
    """Counts that show how often a model is unsure when it is wrong.

    Attributes:
        answers: number of answers that the model gave alone and whose probabilities are known.
        wrong: number of wrong answers among them.
        sure: number of wrong answers in which every token has a probability of at least `alpha`; a rule with this alpha
            asks no assistant about them.
        alpha: the alpha of the default rule. Older records without this field used the paper's rule as the default.
    """

    answers: int
    wrong: int
    sure: int
    alpha: float = RuleVerifier.paper().alpha


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


class WayTold(Record):
    """The results of one way to fuse, as of the last look that tested it.

    Attributes:
        name: name of the way to fuse.
        questions: number of questions that all models had answered by that look.
        right: number of right answers that this way gave to these questions.
        against: the model over which this way gains least.
        alone: number of right answers that the model `against` gave to these questions.
        gain: gain in accuracy over the model `against`; see `Advice.gain`.
        continued: whether the last look of the run still tested this way.
    """

    name: str
    questions: int
    right: int
    against: str
    alone: int
    gain: Estimated
    continued: bool = True


class AdviceCounts(Record):
    """The decision of an `Advice`, and the numbers that it is based on, without the models' endpoints."""

    schema_version: Literal[2] = 2
    decision: Literal["fuse", "alone", "undecided", "unknown"]
    model: str
    way: str | None = None
    reverse: bool = False
    first: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    questions: int
    tested: int = 0
    tried: int
    looks: int = 0
    worth: float = WORTH
    equal: int = 0
    audited: int = 0
    disagreed: int = 0
    right: dict[str, int] = Field(default_factory=dict[str, int])
    accuracy: dict[str, Estimated] = Field(default_factory=dict[str, Estimated])
    gain: Estimated | None = None
    upper: float | None = None
    more: int | None = None
    room: Estimated | None = None
    ways: tuple[WayTold, ...] = ()
    bills: dict[str, Bill] = Field(default_factory=dict[str, Bill])
    doubts: dict[str, Doubts] = Field(default_factory=dict[str, Doubts])


def reasoned(
    outcomes: Outcomes, trial: SequentialTest, worth: float, *, complete: bool, room: Estimated | None = None
) -> dict[str, Any]:
    """Compute the fields of `Advice` that follow from counts: the decision and the numbers that it is based on.

    Args:
        outcomes: outcomes of all models and of all ways to fuse.
        trial: the test, with the looks that it has made.
        worth: the smallest gain in accuracy that makes fusing worthwhile.
        complete: False if the run was stopped before its last look, without a decision.
        room: the largest possible gain, if it was so small that it decided the run; see `looks.room`.
    """
    last, fused = trial.last, trial.fused
    decision: str = "alone" if room is not None else trial.verdict(worth)
    best = (
        fused
        if fused is not None
        else max(last.values(), key=lambda one: one.total / max(1, one.questions), default=None)
    )
    shown = {way: look.questions for look in trial.seen for way in look.ways}
    asked = outcomes.questions
    if fused is not None:
        asked = outcomes.of(next(look.questions for look in trial.seen if look.fuse is not None))
    elif best is not None and room is None:
        asked = outcomes.of(shown[best.way])
    model = outcomes.better(asked)
    right = {name: outcomes.right(name, asked) for name in outcomes.alone}
    found: dict[str, Any] = {
        "decision": decision if complete else "unknown",
        "model": model,
        "tried": len({*trial.tried, *outcomes.ways}),
        "looks": len(trial.seen),
        "worth": worth,
        "tested": len(asked),
        "room": room,
    }
    if best is not None and best.questions and room is None and complete:
        right["fused"] = outcomes.right(best.way, asked)
        found |= {
            "way": best.way,
            "gain": best.gain(outcomes.counts(best.way, best.against, asked)),
            "upper": max(one.upper for one in last.values()),
            "more": best.more(worth) if decision == "undecided" else None,
        }
    there = {*trial.seen[-1].ways} if trial.seen else set[str]()
    ways = [_told(outcomes, one, shown[one.way], one.way in there) for one in last.values() if one.questions]
    ways.sort(key=lambda one: (-one.continued, -one.gain.value))
    accuracy = {name: wilson(count, len(asked)) for name, count in right.items() if asked}
    return {**found, "right": right, "accuracy": accuracy, "ways": tuple(ways)}


def _told(outcomes: Outcomes, one: WaySeen, questions: Sequence[str], there: bool) -> WayTold:
    return WayTold(
        name=one.way,
        questions=one.questions,
        right=outcomes.right(one.way, questions),
        against=one.against,
        alone=outcomes.right(one.against, questions),
        gain=one.gain(outcomes.counts(one.way, one.against, questions)),
        continued=there,
    )


# Words.

_LONG = 30  # settings with at least this many characters are left out of a sentence
_MANY = 0.25
"""If more than this share of a model's wrong answers is confident, the default rule misses too many errors."""


def advice_words(advice: AdviceCounts, models: Mapping[str, str], order: Sequence[str]) -> str:
    """Put advice into words, as one paragraph.

    Args:
        advice: the advice.
        models: the models' names on their servers, keyed by their names in the comparison.
        order: the models' names in the comparison, in the order of the advised fusion.
    """
    if advice.decision == "fuse":
        sentences = _fuse(advice, models, order)
    elif advice.decision == "alone":
        sentences = _alone(advice, models)
    else:
        sentences = _undecided(advice, models)
    return " ".join([*sentences, *_audit(advice), *_doubts(advice, models)])


def _fuse(advice: AdviceCounts, models: Mapping[str, str], order: Sequence[str]) -> Iterator[str]:
    first, *others = (f"{with_article(name)} ({models[name]})" for name in order)
    assert advice.gain is not None
    yield "Fuse them."
    yield f"Let {first} draft and {in_words(others)} assist, by {_method(advice)}."
    yield (
        f"That gains at least {_points(advice.gain.low)} over the better model alone ({with_article(advice.model)}): "
        f"of {counted(advice.tested, 'question')} it had {_right(advice, 'fused')} right, and that model "
        f"{_right(advice, advice.model)}."
    )
    yield (
        f"The error is at most 5 %, with {_counted(advice)}; the gain seen, {_signed(advice.gain.value)}, "
        "tends to be too large, as it was picked for being large."
    )
    yield from _cost(advice)


def _alone(advice: AdviceCounts, models: Mapping[str, str]) -> Iterator[str]:
    yield f"Use {with_article(advice.model)} ({models[advice.model]}) alone."
    if advice.room is not None:
        share = round(advice.room.value * advice.tested)
        yield (
            f"No way to fuse gains {_points(advice.worth)} or more: that model was wrong, and the models' texts "
            f"differ, at only {share} of {counted(advice.tested, 'question')} (at most "
            f"{_points(advice.room.high)} of all questions)."
        )
    elif advice.gain is not None and advice.upper is not None:
        gain = advice.gain.value
        seen = (
            f"is {_points(-gain)} behind" if gain < 0 else f"seems to gain {_points(gain)}" if gain else "gains nothing"
        )
        most = f", and none gains more than {_points(advice.upper)}" if advice.upper >= 0 else ""
        yield (
            f"No way to fuse gains {_points(advice.worth)} or more: the best of {advice.tried}, {_method(advice)}, "
            f"{seen}{most}."
        )
    yield from _rights(advice, models)


def _undecided(advice: AdviceCounts, models: Mapping[str, str]) -> Iterator[str]:
    yield f"Undecided. Use {with_article(advice.model)} ({models[advice.model]}) alone for now."
    if advice.gain is None:
        yield f"None of {_ways(advice)} could be compared with the models."
    else:
        gain = advice.gain
        seen = f"{_signed(gain.value)}, between {_signed(gain.low)} and {_signed(gain.high)}"
        yield (
            f"Of {_ways(advice)} the best is {_method(advice)}, with {_right(advice, 'fused')} of "
            f"{counted(advice.tested, 'question')} right: {seen} points. With an error of at most 5 % "
            f"({_counted(advice)}) that shows no gain, and it does not exclude one of {_points(advice.worth)}."
        )
    yield from _rights(advice, models)
    if advice.more:
        yield f"About {_rounded(advice.more)} more questions would decide: add them to the file and ask again."


def _rights(advice: AdviceCounts, models: Mapping[str, str]) -> Iterator[str]:
    others = [f"{with_article(name)} alone {_right(advice, name)}" for name in models if name != advice.model]
    mine = f"{with_article(advice.model)} alone had {_right(advice, advice.model)} right"
    yield f"Of {counted(advice.tested, 'question')} {mine}, {in_words(others)}."


def _audit(advice: AdviceCounts) -> Iterator[str]:
    if advice.disagreed:
        yield (
            f"If all models wrote the same text, ways are assumed to write it, too. Of {advice.audited} answers to "
            f"such questions that were requested as a check, {advice.disagreed} had another grade: distrust this "
            "advice, and compare instead."
        )


def _right(advice: AdviceCounts, name: str) -> str:
    return f"{advice.right[name]} ({advice.accuracy[name].value:.0%})"


def _ways(advice: AdviceCounts) -> str:
    return counted(advice.tried, "way") + " to fuse"


def _counted(advice: AdviceCounts) -> str:
    return f"{counted(advice.tried, 'way')} and {counted(advice.looks, 'look')} counted"


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


def _method(advice: AdviceCounts) -> str:
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


def _cost(advice: AdviceCounts) -> Iterator[str]:
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


def _doubts(advice: AdviceCounts, models: Iterable[str]) -> Iterator[str]:
    """Yield sentences that say whether the models are unsure when they are wrong, and what to try if they are sure."""
    missed: list[str] = []
    alpha = next((f"{one.alpha:g}" for one in advice.doubts.values()), "")
    for name in models:
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
