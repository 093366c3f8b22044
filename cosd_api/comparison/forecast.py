"""Cost of a comparison, estimated from a few of its questions before any is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from cosd_api.comparison.contestants import SELF_CONSISTENCY
from cosd_api.comparison.prices import MILLION, ComparisonEstimate, Price
from cosd_api.estimate import EndpointEstimate, Range
from cosd_api.fusion import Fusion
from cosd_api.speed import Speed, time_of
from cosd_api.training.dataset import Example
from cosd_providers.messages import Message

__all__ = ["MOST_SAMPLES", "Later", "Measure", "equal_bill", "estimated", "with_test"]

MOST_SAMPLES = 40
"""Samples of self-consistency, at most: where CoSD's bill pays for more, they would change little."""

_TWICE = 2
"""Requests for one sample, at most; see `Switch.cost`."""

Measure = Callable[[str | Sequence[Message], int], Awaitable[Mapping[str, Speed]]]
"""Measures the speed of each endpoint, by name, on a question and with a number of requests at the same time."""

_FREE = Price(0, 0)
_Bound = tuple[float, float, float]
"""A number: at least, most likely and at most."""
_Endpoints = Mapping[str, EndpointEstimate]
"""The cost of one answer, by endpoint as the user gave it."""


@dataclass(frozen=True, slots=True)
class Later:
    """Contestants that are not known yet.

    Attributes:
        alike: each with one whose answers cost about the same.
        votes: name of the contestant whose bill pays for self-consistency, samples of one of the models; None without.
    """

    alike: Mapping[str, str]
    votes: str | None = None

    @property
    def names(self) -> set[str]:
        """Their names."""
        return {*self.alike, *([] if self.votes is None else [SELF_CONSISTENCY])}


@dataclass(frozen=True, slots=True)
class _Cost:
    """The mean cost of an answer at all endpoints."""

    requests: _Bound
    tokens: _Bound
    money: _Bound = (0, 0, 0)
    seconds: _Bound = (0, 0, 0)

    def changed(self, change: Callable[[_Bound], _Bound]) -> _Cost:
        return _Cost(*map(change, (self.requests, self.tokens, self.money, self.seconds)))


async def estimated(
    fusions: Mapping[str, Fusion],
    to_come: Mapping[str, Sequence[Example]],
    max_tokens: int,
    *,
    models: Sequence[str],
    roles: Mapping[str, Mapping[str, str]],
    prices: Mapping[str, Price] | None,
    later: Later,
    known: int,
    questions: int,
    most: int | None,
    concurrency: int,
    measure: Measure | None,
) -> ComparisonEstimate:
    """Estimate what answers to come may cost.

    Args:
        fusions: by contestant.
        to_come: the questions that each contestant is still to answer; of contestants without a fusion, too.
        max_tokens: of an answer.
        models: names of the models, as contestants.
        roles: for each contestant its endpoints, as the user gave them, by their names in its fusion.
        prices: by endpoint.
        later: contestants that are not known yet.
        known: number of answers that are there.
        questions: number of all questions.
        most: the limit of billed tokens.
        concurrency: number of answers at the same time.
        measure: measures the models' speeds; None to estimate no time.

    Raises:
        ProviderError: an endpoint failed.
    """
    assumptions: dict[str, None] = {}
    examples = [*{example.key: example for several in to_come.values() for example in several}.values()]
    examples.sort(key=lambda one: len(str(one.prompt)))
    looked_at = [*{at: examples[at] for at in (0, len(examples) // 2, len(examples) - 1)}.values()] if examples else []
    needed = {name for name, several in to_come.items() if several}
    needed |= {later.alike[name] for name in needed & {*later.alike}}
    if later.votes is not None and SELF_CONSISTENCY in needed:
        needed |= {*models, later.votes}
    number = sum(map(len, to_come.values()))
    at_once = max(1, min(concurrency, number))
    speeds: Mapping[str, Speed] = {}
    if measure is not None and examples:
        speeds = await measure(examples[len(examples) // 2].prompt, at_once)
    made: dict[str, _Cost] = {}
    for name in (name for name in fusions if name in needed):
        answers: list[_Endpoints] = []
        for example in looked_at:
            found = await fusions[name].estimate(example.prompt, max_tokens=max_tokens)
            answers.append({roles[name][at]: one for at, one in found.endpoints.items()})
            if to_come.get(name):
                assumptions[f"{name}: {'; '.join(found.assumptions)}"] = None
        made[name] = _mean([_cost(one, prices or {}, speeds, max_tokens) for one in answers])
    for name in needed & {*later.alike}:
        made[name] = made[later.alike[name]]
    if later.votes is not None and SELF_CONSISTENCY in needed:
        made[SELF_CONSISTENCY] = _voted([made[name] for name in models], made[later.votes])
    if known:  # answers of those that are made later may be there
        for name in needed & later.names:
            made[name] = made[name].changed(lambda bound: (0, *bound[1:]))
    scales = {name: len(to_come[name]) for name in made if to_come.get(name)}

    def over(of: Callable[[_Cost], _Bound], names: Sequence[str]) -> _Bound:
        bounds = [tuple(scales[name] * bound for bound in of(made[name])) for name in names]
        return sum(one[0] for one in bounds), sum(one[1] for one in bounds), sum(one[2] for one in bounds)

    durations = {name: over(lambda one: one.seconds, [name])[1] / at_once for name in scales}
    reading = len(examples) * sum(speed.reading for speed in speeds.values())  # after that a question is in the caches
    return ComparisonEstimate(
        questions=questions,
        contestants={name: _range(over(lambda one: one.tokens, [name])) for name in scales},
        known=known,
        answers=number,
        requests=_range(over(lambda one: one.requests, [*scales])),
        billed_tokens=_range(over(lambda one: one.tokens, [*scales])),
        money=None if prices is None else over(lambda one: one.money, [*scales]),
        most=most,
        seconds=sum(durations.values()) + reading if speeds else None,
        durations=durations if speeds else {},
        concurrency=at_once,
        assumptions=tuple(assumptions),
    )


def with_test(
    first: ComparisonEstimate, models: ComparisonEstimate, ways: Sequence[ComparisonEstimate], *, certain: bool
) -> ComparisonEstimate:
    """Estimate both parts of `advise`: every way and all models, then all models and one of the ways.

    Args:
        first: of the first part.
        models: of all models in the second part.
        ways: of each way in the second part, of which one is to be chosen.
        certain: whether the choice is known; otherwise there may be no second part.
    """

    def second(of: str) -> Range:
        alone, each = getattr(models, of), [getattr(one, of) for one in ways]
        return Range(
            low=alone.low + min(one.low for one in each) if certain else 0,
            expected=alone.expected + round(sum(one.expected for one in each) / len(each)),
            high=alone.high + max(one.high for one in each),
        )

    def both(of: str) -> Range:
        mine, more = getattr(first, of), second(of)
        return Range(low=mine.low + more.low, expected=mine.expected + more.expected, high=mine.high + more.high)

    money = None
    if first.money is not None and models.money is not None:
        each = [one.money for one in ways if one.money is not None]
        low = models.money[0] + min(one[0] for one in each) if certain else 0.0
        expected = models.money[1] + sum(one[1] for one in each) / len(each)
        high = models.money[2] + max(one[2] for one in each)
        money = (first.money[0] + low, first.money[1] + expected, first.money[2] + high)
    times = [(first, 1.0), (models, 1.0), *((one, 1 / len(ways)) for one in ways)]
    durations: dict[str, float] = {}
    for part, share in times:
        for name, duration in part.durations.items():
            durations[name] = durations.get(name, 0.0) + share * duration
    seconds = [one.seconds for one in (first, models) if one.seconds is not None]  # in which the questions are read
    seconds += [sum(one.durations.values()) / len(ways) for one in ways]
    return first.model_copy(
        update={
            "questions": first.questions + models.questions,
            "known": first.known + models.known + min(one.known for one in ways),
            "answers": first.answers + models.answers + max(one.answers for one in ways),
            "requests": both("requests"),
            "billed_tokens": both("billed_tokens"),
            "test": second("billed_tokens"),
            "money": money,
            "seconds": sum(seconds) if durations else None,
            "durations": durations,
            "assumptions": tuple(dict.fromkeys([*first.assumptions, *models.assumptions])),
        }
    )


def _range(bound: _Bound) -> Range:
    return Range(low=round(bound[0]), expected=round(bound[1]), high=round(bound[2]))


def _mean(several: Sequence[_Cost]) -> _Cost:
    """The mean over questions."""

    def mean(bounds: Sequence[_Bound]) -> _Bound:
        return (
            sum(one[0] for one in bounds) / len(bounds),
            sum(one[1] for one in bounds) / len(bounds),
            sum(one[2] for one in bounds) / len(bounds),
        )

    return _Cost(
        mean([one.requests for one in several]),
        mean([one.tokens for one in several]),
        mean([one.money for one in several]),
        mean([one.seconds for one in several]),
    )


def _cost(answer: _Endpoints, prices: Mapping[str, Price], speeds: Mapping[str, Speed], max_tokens: int) -> _Cost:
    """The cost of one answer."""

    def total(of: Callable[[EndpointEstimate], Range]) -> _Bound:
        several = [of(one) for one in answer.values()]
        return sum(one.low for one in several), sum(one.expected for one in several), sum(one.high for one in several)

    low = expected = high = 0.0
    for name, one in answer.items():
        price, tokens = prices.get(name, _FREE), one.billed_tokens
        written = min(one.written_tokens, tokens.expected)
        low += tokens.low * price.least / MILLION
        expected += price.of(tokens.expected - written, written)
        high += tokens.high * price.most / MILLION
    seconds = time_of(answer, speeds, max_tokens)
    return _Cost(
        total(lambda one: one.requests),
        total(lambda one: one.billed_tokens),
        (low, expected, high),
        (seconds, seconds, seconds),
    )


def equal_bill(pays: tuple[float, float], one: tuple[float, float]) -> int:
    """The number of answers that a bill pays for, from 1 to `MOST_SAMPLES`.

    Args:
        pays: money, 0 without prices, and tokens.
        one: those of one of the answers.
    """
    at = 0 if pays[0] and one[0] else 1
    return min(MOST_SAMPLES, max(1, round(pays[at] / one[at]))) if one[at] else 1


def _voted(models: Sequence[_Cost], paying: _Cost) -> _Cost:
    """Samples of one of the models, nobody knows which: as many as the bill of another contestant pays for."""
    found = [_samples(one, equal_bill(_bill(paying), _bill(one))) for one in models]

    def either(of: Callable[[_Cost], _Bound]) -> _Bound:
        low, expected, high = zip(*map(of, found), strict=True)
        return min(low), sum(expected) / len(found), max(high)

    return _Cost(
        either(lambda one: one.requests),
        either(lambda one: one.tokens),
        either(lambda one: one.money),
        either(lambda one: one.seconds),
    )


def _samples(alone: _Cost, count: int) -> _Cost:
    """So many answers of a model, whose number is not certain."""
    return alone.changed(lambda bound: (bound[0], count * bound[1], _TWICE * MOST_SAMPLES * bound[2]))


def _bill(cost: _Cost) -> tuple[float, float]:
    return cost.money[1], cost.tokens[1]
