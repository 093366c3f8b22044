"""Prices of endpoints, and an estimate of a comparison's cost before any question is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from cosd_api import Example, Fusion, SettingError
from cosd_api.common.wording import counted, in_words, with_article
from cosd_api.extend import Record
from cosd_api.types import Range

MILLION = 1_000_000
_USEFUL = 20  # an upper bound above this multiple of the likely number is not shown
_NO_BOUND = (
    "no useful upper bound, as at worst every token is replaced, and all that follows is written and asked about again"
)


class Price(NamedTuple):
    """The price of a million tokens at an endpoint, in any currency: of tokens read, and of tokens written."""

    read: float
    written: float

    def of(self, read: float, written: float) -> float:
        """The price of the given numbers of tokens."""
        return (read * self.read + written * self.written) / MILLION


Prices = Mapping[str, tuple[float, float]]
"""Prices (see `Price`), by the name of the endpoint (`"draft"`, `"assistant"`, `"assistant 1"`) or of its model."""


def prices_from(given: Sequence[str]) -> dict[str, Price]:
    """Parse prices as users write them: `NAME=READ,WRITTEN` for each endpoint.

    Raises:
        SettingError: a price is not in this format.
    """
    found: dict[str, Price] = {}
    for one in given:
        name, equals, numbers = one.rpartition("=")
        try:
            read, written = map(float, numbers.split(",") if equals else ())
        except ValueError:
            words = f"{one!r} is not NAME=READ,WRITTEN, as in draft=0.2,0.6: the prices of a million tokens"
            raise SettingError(words) from None
        found[name] = Price(read, written)
    return found


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
            found[name] = Price(*price)
        except TypeError:
            raise SettingError(f"a price is two numbers, of tokens read and written, not {price!r}") from None
        for value in found[name]:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise SettingError(f"a price must be a number of at least 0, not {value!r}")
    return found


class ComparisonEstimate(Record):
    """The estimated cost of a comparison, not counting answers that are already known.

    `str()` omits an upper bound of more than twenty times the likely cost. In the worst case of most methods, every
    token is replaced, and after each replacement the models write and judge the rest of the answer again.

    Attributes:
        unforeseen: contestants whose remaining answers cannot be forecast (see `Method.cost`); the costs exclude them.
        known: number of answers that are already in the journal.
        answers: number of answers still to come.
        length: number of tokens in a likely answer: the mean of the answers in the journal, else the maximum.
        money: likely price; None if no prices are given.
        most: the limit on billed tokens, including the tokens in the journal; None if there is no limit.
    """

    questions: int
    unforeseen: tuple[str, ...] = ()
    known: int
    answers: int
    requests: Range
    billed_tokens: Range
    length: int
    money: float | None = None
    most: int | None = None

    def __str__(self) -> str:
        tokens, useless = self.billed_tokens, self.billed_tokens.high > _USEFUL * self.billed_tokens.expected
        words = f"{counted(self.answers, 'answer')} to {counted(self.questions, 'question')}"
        words += f" ({self.known:,} more are known)" if self.known else ""
        words += f": about {tokens.expected:,} billed tokens"
        if self.answers:
            words += f" if each has {self.length:,} tokens" + (", as the known ones" if self.known else "")
        words += f" (at least {tokens.low:,}" + ("" if useless else f", at most {tokens.high:,}")
        words += f") in about {counted(self.requests.expected, 'request')}"
        if self.money is not None:
            words += f"; price about {self.money:,.4g}"
        if useless:
            words += f"; {_NO_BOUND}" + ("" if self.most is not None else ": max_billed_tokens sets one")
        if self.most is not None:
            words += f"; stops at {counted(self.most, 'billed token')}"
        if self.unforeseen:
            words += f"; and what {in_words(self.unforeseen)} will bill, for which there is no forecast"
        return words


async def estimated(
    fusions: Mapping[str, Fusion],
    to_come: Mapping[str, Sequence[Example]],
    *,
    rough: AbstractSet[str],
    roles: Mapping[str, Mapping[str, str]],
    prices: Mapping[str, Price] | None,
    max_tokens: int,
    known: Sequence[int],
    **fields: Any,
) -> ComparisonEstimate:
    """Estimate the cost of the answers still to come, from the shortest, the median and the longest question.

    Args:
        fusions: for each contestant, its fusion, or one that bills about as much.
        to_come: the questions that each contestant has yet to answer.
        rough: the contestants that bill only about as much as their fusion; twice as much is possible.
        roles: for each contestant, the user's names for its endpoints, keyed by their names in its fusion.
        prices: the price of each endpoint.
        max_tokens: maximum number of tokens in each answer.
        known: the number of tokens in each answer that is already in the journal.
        fields: further fields of the estimate.

    Raises:
        ProviderError: an endpoint failed.
    """
    length = max(1, round(sum(known) / len(known))) if any(known) else max_tokens
    requests, tokens, money, unforeseen = [0, 0, 0], [0, 0, 0], 0.0, list[str]()
    for name, several in to_come.items():
        if not several:
            continue
        asked = sorted((one.prompt for one in several), key=lambda prompt: len(str(prompt)))
        prompts = (asked[0], asked[len(asked) // 2], asked[-1])
        found = [await fusions[name].estimate(one, max_tokens=max_tokens, length=length) for one in prompts]
        if not all(one.forecast for one in found):
            unforeseen.append(name)
            continue
        factors = (0, 1, 2) if name in rough else (1, 1, 1)
        for at, (one, end, factor) in enumerate(zip(found, ("low", "expected", "high"), factors, strict=True)):
            requests[at] += len(asked) * factor * getattr(one.requests, end)
            tokens[at] += len(asked) * factor * getattr(one.billed_tokens, end)
        for role, each in found[1].endpoints.items():
            expected = each.billed_tokens.expected
            written = min(each.written_tokens, expected)
            price = Price(0, 0) if prices is None else prices[roles[name][role]]
            money += len(asked) * price.of(expected - written, written)
    return ComparisonEstimate(
        unforeseen=tuple(unforeseen),
        known=len(known),
        answers=sum(map(len, to_come.values())),
        requests=_range(*requests),
        billed_tokens=_range(*tokens),
        length=length,
        money=None if prices is None else money,
        **fields,
    )


def _range(low: float, expected: float, high: float) -> Range:
    return Range(low=round(low), expected=round(expected), high=round(high))
