"""Which of the ways to ask an assistant is expected to be the cheapest, by what asking this server has cost so far.

All ways give the same answers on the same model, so that only time and money are chosen here. Time follows a small
physical model: `seconds = round trips * r + tokens read * f + tokens written one after another * d`. What each way
needs of the three is known beforehand, more or less; r, f and d are learned from all answers of the server; and how
much a way differs from what the model says of it is a factor of its own, learned from its own answers. All of this is
forgotten exponentially, so that the choice follows a server that changes.

Money: each token that is billed, and not known to come from the server's cache, counts as `TOKEN_SECONDS` beside the
time. Else a little time might be bought with very many tokens.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from cosd_providers.contract import Proposal, Question
from cosd_providers.costs import KEPT, TICK, Costs, Work
from cosd_providers.errors import (
    InvalidRequestError,
    ProviderTimeoutError,
    ResponseError,
    ServerError,
    UnsupportedError,
)
from cosd_providers.scoring import Chain
from cosd_providers.usage import Usage

__all__ = ["TOKEN_SECONDS", "Chooser", "Strategy", "Task", "Ways", "checked_strategy", "counted", "marked"]

Strategy = Literal["echo", "list", "singles", "filter", "continuation"]
"""How an assistant is asked at several places.

- `"echo"`: the whole text is scored in one request.
- `"list"`: one request holds the text up to each place.
- `"singles"`: a request for each place, a few at once.
- `"filter"`: the whole text is scored in one request, which only tells where the text is most probable; then singles.
- `"continuation"`: the model goes on from the first place for as long as it says what the text says; then again.
"""

TOKEN_SECONDS = 1e-6
"""Seconds that a billed token weighs: a million of them are worth one second."""

_WARM = 3  # answers at several places before anything but the default is chosen
_CHEAPER = 0.9  # of what is known to be the cheapest: so little an untried way has to be expected to cost
_AGAIN = 0.04  # of what was spent since a way was last measured: so much another measurement of it may cost
_AT_ONCE = 8  # single requests under way (`concurrency`)
_NEWEST = 0.3  # weight of the last answer in a factor, and in what is known of the cache
_SEEN = 8  # answers that make up a factor
_BYTES = 4  # of a token, about

Ways = Mapping[Strategy, Callable[[], Awaitable[list[Proposal | None]]]]
"""What asks in each of the ways that work, the default first. It has `marked` what was answered in another way."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, as far as it matters for its cost.

    Attributes:
        places: how many.
        before: tokens before the first of them, the prompt's too; about.
        span: tokens from the first to the last, about.
        wanted: tokens of the answer at one place.
    """

    places: int
    before: int
    span: int
    wanted: int

    @classmethod
    def of(cls, prompt: str, text: bytes, questions: Sequence[Question]) -> Task:
        """The cost's side of these questions about `text`, which follows `prompt`."""
        starts = [min(question.start, len(text)) for question in questions] or [0]
        before, span = len(prompt.encode()) + min(starts), max(starts) - min(starts)
        wanted = max((Chain(question).wanted for question in questions), default=1)
        return cls(len(starts), -(-before // _BYTES), -(-span // _BYTES), wanted)


class _Seen(NamedTuple):
    """An answer: its number, what it needed by the model, and how long it took."""

    number: int
    work: Work
    seconds: float


class Chooser:
    """Chooses for one assistant, and learns.

    Args:
        fixed: the way that a user has named; no other is taken.
        clock: seconds, monotonic.
    """

    def __init__(self, fixed: Strategy | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.fixed: Strategy | None = fixed
        self._clock = clock
        self._cost = Costs()
        self._seen: dict[Strategy, deque[_Seen]] = {}
        self._cached = 1.0  # share of what was read before that comes from the cache: all, as far as is known
        self._answers = 0
        self._told = -math.inf  # number of the answer that last told what came from the cache
        self._spent = 0.0  # seconds, billed tokens among them
        self._measured: dict[Strategy, float] = {}  # what had been spent when each was last begun
        self._trying: set[Strategy] = set()
        self._out: set[Strategy] = set()

    def __getstate__(self) -> dict[str, Any]:
        """What was learned; a copy tries nothing just now."""
        return {**self.__dict__, "_trying": set()}

    def choose(self, task: Task, able: Sequence[Strategy], *, dues: Mapping[Strategy, float] | None = None) -> Strategy:
        """The way that is expected to be the cheapest.

        One place is asked plainly. Before something was measured the first of the ways is taken; one that was never
        tried is taken only where it is expected to cost less than the others. Another one that was tried is measured
        again, now and then: it may have become the best. One that is close comes often, a dear one very seldom.

        Args:
            task: what is asked.
            able: the ways that work, the default first.
            dues: round trips that a way costs beside its own, on average.
        """
        if task.places < 2:
            return "singles" if "singles" in able else able[0]
        costs = {way: self.expected(way, task, dues=(dues or {}).get(way, 0.0)) for way in able}
        ranked: list[Strategy] = [way for way in able if way not in self._out]
        ranked.sort(key=lambda way: costs[way])
        tried: list[Strategy] = [way for way in ranked if way in self._seen]
        if self._answers < _WARM or not tried:
            return able[0]
        untried: list[Strategy] = [way for way in ranked if way not in self._seen and way not in self._trying]
        if untried and costs[untried[0]] < _CHEAPER * costs[tried[0]]:
            return untried[0]
        for way in tried[1:]:
            if costs[way] <= _AGAIN * (self._spent - self._measured[way]):
                return way
        return tried[0]

    def expected(self, way: Strategy, task: Task, *, dues: float = 0.0) -> float:
        """What a way is expected to cost, in seconds; billed tokens among them, by their weight."""
        trips, read, written = work = _work(way, task, self._cached)
        seconds = self._cost.seconds((trips + dues, read, written))
        return self._factor(way) * (seconds + TOKEN_SECONDS * _billed(way, task, work))

    def _factor(self, way: Strategy) -> float:
        """How many times what the model says of them the last answers of a way have taken; 1 before there was any."""
        total = logs = 0.0
        for rank, seen in enumerate(reversed([*self._seen.get(way, ())])):  # another thread may add one meanwhile
            weight = float((1 - _NEWEST) ** rank * KEPT ** (self._answers - seen.number))
            total += weight
            logs += weight * math.log(seen.seconds / self._cost.seconds(seen.work))
        return math.exp(logs / total) if total else 1.0

    async def answer(
        self, task: Task, ways: Ways, usage: Usage, *, dues: Mapping[Strategy, float] | None = None
    ) -> list[Proposal | None]:
        """Asks in one of the ways, notes which, and learns from it.

        Where a way that was chosen here turns out not to be supported, the default takes its place, now and later.
        One that fails otherwise before it has ever answered is not chosen again.

        Args:
            task: what is asked.
            ways: those that work.
            usage: the ledger that they bill.
            dues: as in `choose`.
        """
        able: list[Strategy] = [*ways]
        way: Strategy = self.fixed or self.choose(task, able, dues=dues)
        try:
            with self.measured(way, task, usage):
                found = await ways[way]()
        except (InvalidRequestError, UnsupportedError):
            if self.fixed is not None or way == able[0] or task.places < 2:
                raise
            found = await ways[able[0]]()
            self._out.add(way)
            way = able[0]
        except (ServerError, ResponseError, ProviderTimeoutError):
            if way != able[0] and way not in self._seen:  # else it would be tried again each time, and fail
                self._out.add(way)
            raise
        return counted(found, way, usage)

    @contextmanager
    def measured(self, way: Strategy, task: Task, usage: Usage) -> Iterator[None]:
        """Learns from what is done within: how long it took, and what came from the cache. Not where it fails."""
        start, cached, read = self._clock(), usage.cached_tokens, usage.prompt_tokens
        self._measured[way] = self._spent
        self._trying.add(way)
        try:
            yield
        finally:
            self._trying.discard(way)
        # Others may bill the same ledger meanwhile: only what share was cached is read from it.
        read, cached = usage.prompt_tokens - read, usage.cached_tokens - cached
        self.learn(way, task, self._clock() - start, cached / read if read > 0 else 0.0)

    def learn(self, way: Strategy, task: Task, seconds: float, cached: float) -> None:
        """Takes what an answer has cost.

        Args:
            way: how it was asked.
            task: what was asked.
            seconds: how long it took.
            cached: the share of the tokens read that came from the server's cache, as far as that was told.
        """
        if seconds < TICK:
            return
        if way not in ("echo", "filter"):
            full, new = _reads(way, task)
            share = min(cached * full / max(full - new, 1.0), 1.0)
            self._cached += (1 - (1 - _NEWEST) * KEPT ** (self._answers - self._told)) * (share - self._cached)
            self._told = self._answers
        work = _work(way, task, self._cached)
        self._cost.add(work, seconds)
        if task.places < 2:
            return
        self._answers += 1
        self._seen.setdefault(way, deque(maxlen=_SEEN)).append(_Seen(self._answers, work, seconds))
        self._spent += seconds + TOKEN_SECONDS * _billed(way, task, work)
        self._measured[way] = self._spent


def marked(found: Iterable[Proposal | None], way: Strategy, *, but: Container[int] = ()) -> list[Proposal | None]:
    """The same, as answered in this way: what is not marked yet, and is not at one of the places `but`."""
    return [one if one is None or one.strategy or one.start in but else replace(one, strategy=way) for one in found]


def counted(found: Iterable[Proposal | None], way: Strategy, usage: Usage) -> list[Proposal | None]:
    """The same, `marked`; the ledger notes how each was answered."""
    proposals = marked(found, way)
    for one in proposals:
        if one is not None and one.strategy is not None:
            usage.answered_by(one.strategy, 1)
    return proposals


def checked_strategy(strategy: Strategy | None, *able: Strategy) -> Strategy | None:
    """A strategy that a user has named; None for none.

    Raises:
        ValueError: it is none of those that work.
    """
    if strategy not in (None, *able):
        *others, last = map(repr, able)
        raise ValueError(f"no strategy {strategy!r}; there are {', '.join(others)} and {last}")
    return strategy


def _reads(way: Strategy, task: Task) -> tuple[float, float]:
    """The tokens of the prompts, and those among them that no earlier request had."""
    one = task.before + task.span
    if way in ("list", "singles"):
        return task.places * (task.before + task.span / 2), task.span
    if way == "continuation":
        return task.before, 0.0
    return one, one  # a text that is scored is read anew


def _work(way: Strategy, task: Task, cached: float) -> Work:
    """Round trips, tokens that are really read, and tokens that are written one after another."""
    full, new = _reads(way, task)
    read = full - cached * (full - new)
    batches = math.ceil(task.places / _AT_ONCE)
    match way:
        case "list":
            return 1, read, task.wanted
        case "singles":
            return batches, read, batches * task.wanted
        case "continuation":  # and the encodings of its places
            return (2 if task.places > 1 else 1), read, task.span + task.wanted
        case "echo":
            return 2, read, 1
        case "filter":
            return 3, read, 1 + task.wanted


def _billed(way: Strategy, task: Task, work: Work) -> float:
    """The tokens that are billed, but for those that are known to be cached."""
    _, read, written = work
    return read + (written if way in ("echo", "continuation") else task.places * task.wanted)
