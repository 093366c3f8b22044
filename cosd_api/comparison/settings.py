"""Settings of a comparison, and reports on its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from cosd_api import Example
from cosd_api.comparison.contestants import Chosen
from cosd_api.comparison.grading import Grader
from cosd_api.comparison.prices import ComparisonEstimate, Prices
from cosd_api.extend import DEFAULT_MAX_TOKENS, Unit, check_count, check_stop, check_unit


@dataclass(slots=True)
class Tally:
    """The progress of one contestant.

    Attributes:
        name: name of the contestant.
        questions: number of questions that the contestant has to answer, including development questions.
        answered: number of graded answers.
        right: number of right answers.
        failed: number of failed questions.
        billed: number of tokens billed for all of the contestant's answers.
        asked: number of answers for which this run asked the models.
        spent: number of tokens billed for the answers of this run.
        money: price of this run's answers; 0 without prices.
    """

    name: str
    questions: int
    answered: int = 0
    right: int = 0
    failed: int = 0
    billed: int = 0
    asked: int = 0
    spent: int = 0
    money: float = 0.0

    @property
    def left(self) -> int:
        """Number of answers still to come."""
        return max(0, self.questions - self.answered - self.failed)


class ComparisonOptions(TypedDict, total=False):
    """Keyword arguments of `compare`, besides the questions and the models."""

    methods: Chosen
    both_ways: bool
    grader: str | Grader | Callable[[Example, str], Any]
    path: str | Path | None
    max_tokens: int
    stop: str | Sequence[str] | None
    seed: int
    unit: Unit | None
    concurrency: int
    max_billed_tokens: int | None
    prices: Prices | None
    confirm: Callable[[ComparisonEstimate], bool] | None
    progress: Callable[[Sequence[Tally]], None] | None
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSettings:
    """The checked settings of one run; see `compare`."""

    methods: Chosen = "all"
    both_ways: bool = True
    grader: str | Grader | Callable[[Example, str], Any] = "exact"
    path: str | Path | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    seed: int = 0
    unit: Unit | None = None
    concurrency: int = 4
    max_billed_tokens: int | None = None
    prices: Prices | None = None
    confirm: Callable[[ComparisonEstimate], bool] | None = None
    progress: Callable[[Sequence[Tally]], None] | None = None
    dry_run: bool = False

    @classmethod
    def checked(cls, **given: Unpack[ComparisonOptions]) -> Self:
        """Check the given settings, except for methods, grader and prices, which are checked when they are used.

        Raises:
            SettingError: a setting is invalid.
        """
        chosen: dict[str, Any] = {**given, "stop": check_stop(given.get("stop"))}
        settings = cls(**chosen)
        check_count("max_tokens", settings.max_tokens)
        check_count("seed", settings.seed, least=0)
        check_count("concurrency", settings.concurrency)
        if settings.max_billed_tokens is not None:
            check_count("max_billed_tokens", settings.max_billed_tokens)
        check_unit(settings.unit)
        return settings
