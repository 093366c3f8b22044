"""Prices of endpoints, and an estimate of a comparison's cost before any question is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from cosd_api import Example, Fusion, Message, SettingError
from cosd_api.comparison.contestants import SELF_CONSISTENCY
from cosd_api.extend import MEASURED_TOKENS, Record, Speed, counted, duration, expected_time, in_words, with_article
from cosd_api.types import EndpointEstimate, Range

MILLION = 1_000_000
_EXAMPLE = '{"draft": [0.2, 0.6], "assistant": [3, 15]}'
_USEFUL = 20  # an upper bound above this multiple of the likely number is not shown
_NO_BOUND = (
    "no useful upper bound, as at worst every token is replaced, and all that follows is written and asked about again"
)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a million tokens at an endpoint, in any currency.

    Attributes:
        read: price of tokens read.
        written: price of tokens written.
        cached: price of tokens read from a cache, as far as the server reports them; None if it is the same as `read`.

    Raises:
        SettingError: a price is not a number of at least 0.
    """

    read: float
    written: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for value in (self.read, self.written, *([] if self.cached is None else [self.cached])):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise SettingError(f"a price must be a number of at least 0, not {value!r}")

    def of(self, read: float, written: float, cached: float = 0) -> float:
        """The price of the given numbers of tokens; `cached` is the part of `read` that came from a cache."""
        less = 0.0 if self.cached is None else cached * (self.read - self.cached)
        return (read * self.read - less + written * self.written) / MILLION

    @property
    def least(self) -> float:
        """The price of a million tokens of the cheapest kind."""
        return min(self.read, self.written, self.read if self.cached is None else self.cached)

    @property
    def most(self) -> float:
        """The price of a million tokens of the most expensive kind."""
        return max(self.read, self.written, self.cached or 0)


Prices = Mapping[str, Price | tuple[float, float] | tuple[float, float, float]]
"""Prices, keyed by `"draft"` and `"assistant"` (or `"assistant 1"` and so on), or by the models' names. Each price is a
`Price`, or two or three numbers."""


def prices_from(given: Sequence[str]) -> dict[str, Price]:
    """Parse prices as users write them: `NAME=READ,WRITTEN[,CACHED]` for each endpoint, or a JSON file.

    Raises:
        OSError: the file cannot be read.
        SettingError: a price is not in this format.
    """
    found: dict[str, Price] = {}
    for one in given:
        name, equals, numbers = one.rpartition("=")
        if not equals:
            found |= _from_file(Path(one))
            continue
        try:
            read, written, *cached = map(float, numbers.split(","))
            found[name] = Price(read, written, *cached)
        except SettingError:
            raise
        except (TypeError, ValueError):
            words = f"{one!r} is not NAME=READ,WRITTEN, as in draft=0.2,0.6: the prices of a million tokens"
            raise SettingError(f"{words}; a third number is that of tokens read from a cache") from None
    return found


def _from_file(path: Path) -> dict[str, Price]:
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError
        return {name: Price(*several) for name, several in cast("dict[str, Any]", value).items()}
    except (TypeError, ValueError) as error:
        more = f": {error}" if isinstance(error, SettingError) else ""
        raise SettingError(f"{path} does not hold prices such as {_EXAMPLE}{more}") from None


def checked_prices(given: Prices | None, models: Mapping[str, str]) -> dict[str, Price] | None:
    """Check prices, and return them keyed by the models' names in the comparison.

    Args:
        given: the prices, as the user gave them.
        models: the models' names on their servers, keyed by `"draft"` and `"assistant"` (or `"assistant 1"` and so on).

    Raises:
        SettingError: a name is unknown, or a price is missing or invalid.
    """
    if given is None:
        return None
    names = f"the names are {in_words([*models])}, or the models'"
    if unknown := [name for name in given if name not in {*models, *models.values()}]:
        raise SettingError(
            f"there is no endpoint {unknown[0]!r} that could have a price: {names}, {', '.join(models.values())}"
        )
    found: dict[str, Price] = {}
    for name, model in models.items():
        price = given.get(name, given.get(model))
        if price is None:
            raise SettingError(f"the price of {with_article(name)} ({model}) is missing: {names}")
        try:
            found[name] = price if isinstance(price, Price) else Price(*price)
        except TypeError:
            raise SettingError(f"a price is two or three numbers: read, written and cached, not {price!r}") from None
    return found


def _between(tokens: Range) -> str:
    """Format the lower bound in words, with the upper bound if it is useful."""
    useful = tokens.high <= _USEFUL * tokens.expected
    return f"at least {tokens.low:,}" + (f", at most {tokens.high:,}" if useful else "")


class ComparisonEstimate(Record):
    """The estimated cost of a comparison, not counting answers that are already known.

    `str()` omits an upper bound of more than twenty times the likely cost. In the worst case of most methods, every
    token is replaced, and after each replacement the models write and judge the rest of the answer again.

    Attributes:
        questions: number of questions.
        contestants: tokens billed for each contestant, keyed by name.
        unforeseen: contestants whose remaining answers cannot be forecast (see `Method.cost`); the costs exclude them.
        known: number of answers that are already in the journal.
        answers: number of answers still to come.
        requests: number of requests to all endpoints.
        billed_tokens: number of tokens billed by all endpoints.
        length: number of tokens in an answer, for the likely values: the mean of the answers in the journal, or the
            maximum number if there are none.
        money: lower bound, likely value and upper bound of the price; None if no prices are given.
        most: the limit on billed tokens, including the tokens in the journal; None if there is no limit.
        seconds: estimated duration, from speeds measured on a few tokens of each model. None if no speed was measured;
            only a dry run measures speeds.
        durations: seconds that each contestant adds to `seconds`, keyed by name.
        concurrency: number of answers that are requested at the same time.
        assumptions: the assumptions of the estimate, in words.
    """

    questions: int
    contestants: dict[str, Range]
    unforeseen: tuple[str, ...] = ()
    known: int
    answers: int
    requests: Range
    billed_tokens: Range
    length: int
    money: tuple[float, float, float] | None = None
    most: int | None = None
    seconds: float | None = None
    durations: dict[str, float] = Field(default_factory=dict[str, float])
    concurrency: int = 1
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        tokens, requests = self.billed_tokens, self.requests
        words = f"{counted(self.answers, 'answer')} to {counted(self.questions, 'question')}"
        words += f" ({self.known:,} more are known)" if self.known else ""
        words += f": about {tokens.expected:,} billed tokens{self._basis_of_tokens()} ({_between(tokens)})"
        words += f" in about {counted(requests.expected, 'request')}"
        if self.money is not None:
            low, expected, high = self.money
            bound = f", at most {high:,.4g}" if high <= _USEFUL * expected else ""
            words += f"; price about {expected:,.4g} (at least {low:,.4g}{bound})"
        if tokens.high > _USEFUL * tokens.expected:
            words += f"; {_NO_BOUND}"
            words += "" if self.most is not None else ": max_billed_tokens sets one"
        if self.most is not None:
            words += f"; stops at {counted(self.most, 'billed token')}"
        if self.seconds is not None:
            words += f"; takes about {duration(self.seconds)}{self._basis_of_time()}"
        if self.unforeseen:
            words += f"; and what {in_words(self.unforeseen)} will bill, for which there is no forecast"
        return words

    def _basis_of_tokens(self) -> str:
        if not self.answers:
            return ""
        words = f" if each has {self.length:,} tokens"
        if self.known:
            return f"{words}, as the known ones"
        return f"{words}, {self.billed_tokens.expected / self.answers / self.length:,.0f} for each token of an answer"

    def _basis_of_time(self) -> str:
        together = f" with {self.concurrency} answers at the same time" if self.concurrency > 1 else ""
        words = f"{together}, estimated from {MEASURED_TOKENS} tokens of each model"
        if len(self.durations) > 1:
            longest = max(self.durations, key=self.durations.__getitem__)
            words += f" (the longest part: {longest}, {duration(self.durations[longest])})"
        return words


# The estimate.

MOST_SAMPLES = 40
"""Maximum number of samples for self-consistency; more would change little, even if CoSD's bill would pay for them."""

_TWICE = 2
"""Maximum number of requests for one sample; see `Switch.cost`."""

Measure = Callable[[str | Sequence[Message], int], Awaitable[Mapping[str, Speed]]]
"""Function that takes a question and a number of concurrent requests, and measures the speed of each named endpoint."""

_FREE = Price(0, 0)
_Bound = tuple[float, float, float]
"""Lower bound, likely value and upper bound of a number."""
_Cost = Mapping[str, _Bound]
"""The mean cost of an answer at all endpoints, with the keys `"requests"`, `"tokens"`, `"money"` and `"seconds"`."""
_Endpoints = Mapping[str, EndpointEstimate]
"""The cost of one answer, keyed by the user's names for the endpoints."""


@dataclass(frozen=True, slots=True)
class Later:
    """Contestants that will be added during the run.

    Attributes:
        alike: for each added contestant, keyed by name, the name of a contestant whose answers cost about the same.
        votes: name of the contestant whose bill pays for the samples of self-consistency; None if self-consistency will
            not be added.
    """

    alike: Mapping[str, str]
    votes: str | None = None

    @property
    def names(self) -> set[str]:
        """The names of these contestants."""
        return {*self.alike, *([] if self.votes is None else [SELF_CONSISTENCY])}


async def estimated(
    fusions: Mapping[str, Fusion],
    to_come: Mapping[str, Sequence[Example]],
    max_tokens: int,
    *,
    models: Sequence[str],
    roles: Mapping[str, Mapping[str, str]],
    prices: Mapping[str, Price] | None,
    later: Later,
    known: Sequence[int],
    questions: int,
    most: int | None,
    concurrency: int,
    measure: Measure | None,
) -> ComparisonEstimate:
    """Estimate the cost of the answers still to come.

    Args:
        fusions: the fusion of each contestant.
        to_come: the questions that each contestant has yet to answer, including contestants without a fusion.
        max_tokens: maximum number of tokens in each answer.
        models: names of the models, as contestants.
        roles: for each contestant, the user's names for its endpoints, keyed by their names in its fusion.
        prices: the price of each endpoint.
        later: contestants that will be added during the run.
        known: the number of tokens in each answer that is already in the journal.
        questions: total number of questions.
        most: the limit on billed tokens.
        concurrency: number of answers that are requested at the same time.
        measure: function that measures the models' speeds; None to leave out the time.

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
    length = max(1, round(sum(known) / len(known))) if any(known) else max_tokens
    made: dict[str, _Cost] = {}
    for name in (name for name in fusions if name in needed):
        forecast = partial(fusions[name].estimate, max_tokens=max_tokens, length=length)
        several = [await forecast(example.prompt) for example in looked_at]
        if to_come.get(name):
            assumptions |= dict.fromkeys(f"{name}: {'; '.join(one.assumptions)}" for one in several)
        if answers := [_by_role(one.endpoints, roles[name]) for one in several if one.forecast]:
            made[name] = _mean([_cost(one, prices or {}, speeds, length) for one in answers])
    made |= {name: made[bill] for name, bill in later.alike.items() if name in needed and bill in made}
    if later.votes in made and SELF_CONSISTENCY in needed:
        made[SELF_CONSISTENCY] = _voted([made[name] for name in models], made[later.votes])
    if known:  # the journal may contain answers of contestants that will be added
        for name in made.keys() & later.names:
            made[name] = {unit: (0, expected, high) for unit, (_, expected, high) in made[name].items()}
    scales = {name: len(to_come[name]) for name in made if to_come.get(name)}

    def over(unit: str, names: Iterable[str]) -> _Bound:
        return _total([_times(scales[name], made[name][unit]) for name in names])

    durations = {name: over("seconds", [name])[1] / at_once for name in scales}
    reading = len(examples) * sum(speed.reading for speed in speeds.values())  # later readings are cached
    return ComparisonEstimate(
        questions=questions,
        contestants={name: _range(over("tokens", [name])) for name in scales},
        unforeseen=tuple(name for name, several in to_come.items() if several and name not in made),
        known=len(known),
        answers=number,
        requests=_range(over("requests", scales)),
        billed_tokens=_range(over("tokens", scales)),
        length=length,
        money=None if prices is None else over("money", scales),
        most=most,
        seconds=sum(durations.values()) + reading if speeds else None,
        durations=durations if speeds else {},
        concurrency=at_once,
        assumptions=tuple(assumptions),
    )


def _range(bound: _Bound) -> Range:
    return Range(low=round(bound[0]), expected=round(bound[1]), high=round(bound[2]))


def _bound(one: Range) -> _Bound:
    return one.low, one.expected, one.high


def _times(number: int, bound: _Bound) -> _Bound:
    return number * bound[0], number * bound[1], number * bound[2]


def _total(several: Sequence[_Bound]) -> _Bound:
    return sum(one[0] for one in several), sum(one[1] for one in several), sum(one[2] for one in several)


def _mean(several: Sequence[_Cost]) -> _Cost:
    """Average costs over questions."""
    sums = {unit: _total([one[unit] for one in several]) for unit in several[0]}
    return {unit: (one[0] / len(several), one[1] / len(several), one[2] / len(several)) for unit, one in sums.items()}


def _by_role(endpoints: _Endpoints, roles: Mapping[str, str]) -> _Endpoints:
    return {roles[name]: one for name, one in endpoints.items()}


def _cost(answer: _Endpoints, prices: Mapping[str, Price], speeds: Mapping[str, Speed], length: int) -> _Cost:
    """Add up the cost of one answer at all endpoints."""
    low = expected = high = 0.0
    for name, one in answer.items():
        price, tokens = prices.get(name, _FREE), one.billed_tokens
        written = min(one.written_tokens, tokens.expected)
        low += tokens.low * price.least / MILLION
        expected += price.of(tokens.expected - written, written)
        high += tokens.high * price.most / MILLION
    seconds = expected_time(answer, speeds, length)
    return {
        "requests": _total([_bound(one.requests) for one in answer.values()]),
        "tokens": _total([_bound(one.billed_tokens) for one in answer.values()]),
        "money": (low, expected, high),
        "seconds": (seconds, seconds, seconds),
    }


def equal_bill(pays: tuple[float, float], one: tuple[float, float]) -> int:
    """Number of answers that a bill pays for, from 1 to `MOST_SAMPLES`.

    Args:
        pays: the bill, as an amount of money (0 without prices) and a number of tokens.
        one: the cost of one answer, in the same form.
    """
    at = 0 if pays[0] and one[0] else 1
    return min(MOST_SAMPLES, max(1, round(pays[at] / one[at]))) if one[at] else 1


def _voted(models: Sequence[_Cost], paying: _Cost) -> _Cost:
    """Estimate the cost of self-consistency, with as many samples as the bill of another contestant pays for.

    The better model draws the samples. Because it is not known yet, the likely cost is the mean of the costs for each
    model.
    """
    counts = [equal_bill(_bill(paying), _bill(one)) for one in models]
    found: dict[str, _Bound] = {}
    for unit in paying:
        bounds = [one[unit] for one in models]
        expected = [count * bound[1] for count, bound in zip(counts, bounds, strict=True)]
        most = max(_TWICE * MOST_SAMPLES * bound[2] for bound in bounds)  # for the maximum number of samples
        found[unit] = min(bound[0] for bound in bounds), sum(expected) / len(models), most
    return found


def _bill(cost: _Cost) -> tuple[float, float]:
    return cost["money"][1], cost["tokens"][1]
