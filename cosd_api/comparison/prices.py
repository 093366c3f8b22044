"""Prices of endpoints, and the cost of a comparison beforehand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from cosd_api.errors import SettingError
from cosd_api.estimate import Range
from cosd_api.records import Record
from cosd_api.speed import MEASURED
from cosd_api.wording import counted, duration, in_words, the

__all__ = ["ComparisonEstimate", "Price", "Prices", "checked_prices", "prices_from"]

MILLION = 1_000_000
_EXAMPLE = '{"draft": [0.2, 0.6], "assistant": [3, 15]}'
_USEFUL = 20  # times what is most likely, beyond which a bound tells nobody what to expect
_NO_BOUND = (
    "no useful bound above, as at worst every token is replaced, and all behind it is written and asked about again"
)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of an endpoint for a million tokens, in any currency.

    Attributes:
        read: of tokens read.
        written: of tokens written.
        cached: of tokens read from a cache, as far as the server reports them; None where they cost what others do.

    Raises:
        SettingError: one of them is no number of at least 0.
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
        """The price of so many tokens; `cached` are those among the ones read that came from a cache."""
        less = 0.0 if self.cached is None else cached * (self.read - self.cached)
        return (read * self.read - less + written * self.written) / MILLION

    @property
    def least(self) -> float:
        """The price of the cheapest tokens."""
        return min(self.read, self.written, self.read if self.cached is None else self.cached)

    @property
    def most(self) -> float:
        """The price of the dearest tokens."""
        return max(self.read, self.written, self.cached or 0)


Prices = Mapping[str, Price | tuple[float, float] | tuple[float, float, float]]
"""Prices by `"draft"` and `"assistant"` (or `"assistant 1"` and so on), or the models' names: each a `Price`, or two or
three numbers."""


def prices_from(given: Sequence[str]) -> dict[str, Price]:
    """Prices as somebody wrote them: `NAME=READ,WRITTEN[,CACHED]` for each endpoint, or a JSON file.

    Raises:
        OSError: the file cannot be read.
        SettingError: they are not written so.
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
    """Prices by `"draft"` and `"assistant"`, or several of these; `models` are the models' names on their servers.

    Raises:
        SettingError: a name is unknown, or a price is missing or invalid.
    """
    if given is None:
        return None
    names = f"the names are {in_words([*models])}, or the models'"
    if unknown := [name for name in given if name not in {*models, *models.values()}]:
        raise SettingError(
            f"there is no endpoint {unknown[0]!r} to have a price: {names}, {', '.join(models.values())}"
        )
    found: dict[str, Price] = {}
    for name, model in models.items():
        price = given.get(name, given.get(model))
        if price is None:
            raise SettingError(f"the price of {the(name)} ({model}) is missing: {names}")
        try:
            found[name] = price if isinstance(price, Price) else Price(*price)
        except TypeError:
            raise SettingError(f"a price is two or three numbers: read, written and cached, not {price!r}") from None
    return found


def _between(tokens: Range) -> str:
    """The least, and the most where that says something."""
    useful = tokens.high <= _USEFUL * tokens.expected
    return f"at least {tokens.low:,}" + (f", at most {tokens.high:,}" if useful else "")


class ComparisonEstimate(Record):
    """The cost of a comparison before it is made, without what is known already.

    In words, what it is at most is left out where it is more than twenty times what is most likely: in the worst case
    of most methods every token is replaced, and all behind it is written and asked about again each time.

    Attributes:
        questions: number of questions.
        contestants: tokens that each contestant is likely to bill, by name.
        known: number of answers that the journal has.
        answers: number of answers to come.
        requests: to all endpoints.
        billed_tokens: by all endpoints.
        money: at least, most likely and at most; None without prices.
        most: the limit of billed tokens, with those of the journal; None without one.
        test: of `advise`, tokens of the second part, which are in `billed_tokens`: none if no way is ahead, most likely
            those of the models alone and of a way like the mean of all, at most with the dearest.
        seconds: about how long it takes, as measured on a few tokens of each model; None where nothing was measured, as
            outside of a dry run.
        durations: the part of each contestant in it, in seconds, by name.
        concurrency: number of answers at the same time.
        assumptions: the basis, in words.
    """

    questions: int
    contestants: dict[str, Range]
    known: int
    answers: int
    requests: Range
    billed_tokens: Range
    money: tuple[float, float, float] | None = None
    most: int | None = None
    test: Range | None = None
    seconds: float | None = None
    durations: dict[str, float] = Field(default_factory=dict[str, float])
    concurrency: int = 1
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        tokens, requests = self.billed_tokens, self.requests
        words = f"{counted(self.answers, 'answer')} to {counted(self.questions, 'question')}"
        words += f" ({self.known:,} more are known)" if self.known else ""
        words += f": about {tokens.expected:,} billed tokens ({_between(tokens)})"
        words += f" in about {counted(requests.expected, 'request')}"
        if self.test is not None and self.test.high:
            part = f"{self.test.expected:,} of them ({_between(self.test)})"
            words += f"; {part} to test the way that is chosen"
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
        return words

    def _basis_of_time(self) -> str:
        together = f" with {self.concurrency} answers at the same time" if self.concurrency > 1 else ""
        words = f"{together}, estimated from {MEASURED} tokens of each model"
        if len(self.durations) > 1:
            longest = max(self.durations, key=self.durations.__getitem__)
            words += f" (the longest part: {longest}, {duration(self.durations[longest])})"
        return words
