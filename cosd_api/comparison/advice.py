"""Advice that follows from a finished comparison: fuse the models, use one of them alone, or undecided."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from cosd_api.comparison.contestants import Contestant
from cosd_api.comparison.statistics import Estimated
from cosd_api.extend import Record, counted, in_words, with_article

if TYPE_CHECKING:
    from cosd_api.comparison.result import Comparison, Standing

Decision = Literal["fuse", "alone", "undecided", "unknown"]

WORTH = 0.05
"""Default for the smallest gain in accuracy that makes fusing worthwhile."""
_POWER = 1.3
"""Factor by which an interval must be shorter than the gain, so that four of five runs show it."""
_LONG = 30  # settings with at least this many characters are left out of a sentence


class Advice(Record):
    """Advice on whether to fuse two or more models; `str(advice)` puts it into words.

    It is read off the differences of a comparison, whose intervals hold for all ways and models together: if no way to
    fuse is better than the better model, at most 5 of 100 comparisons advise to fuse, however many ways are compared.

    Attributes:
        schema_version: version of this format.
        decision: `"fuse"`; `"alone"` to use one model, because a gain of `worth` is excluded; `"undecided"` if the
            comparison shows neither; or `"unknown"` if it is not complete, or compares no way to fuse.
        words: the advice in words.
        model: the better model alone: `"draft"`, `"assistant"` or, with several assistants, a name such as `"assistant
            1"`.
        way: name of the advised way to fuse or, if none is advised, of the way that gains most; None without a way.
            `Comparison.fusion(way, ...)` creates the fusion.
        tried: number of ways to fuse that were compared.
        worth: the smallest gain in accuracy that makes fusing worthwhile.
        gain: gain in accuracy over the model over which the way gains least, with its simultaneous interval.
        upper: upper bound of the gains of all ways to fuse.
        more: if `"undecided"`, the approximate number of further questions that would show the gain, or a gain of
            `worth`.
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
        words=" ".join(sentences),
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


# Words.


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
