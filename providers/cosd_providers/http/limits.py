"""How many requests and tokens one server is sent: the only module that knows the library for it.

A server's own limits are met by waiting here, before it has to refuse. What counts are generation requests.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import anyio
from aiolimiter import AsyncLimiter

from cosd_providers.usage import Usage

__all__ = ["Limiter", "Limits", "Slot", "checked_limits"]

_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server may be sent at most, by one provider, in one event loop. None is no limit.

    Only requests that the model works on count, and each attempt of one counts for the rates.

    Attributes:
        concurrency: requests under way. A draft's stream counts until it is closed. Where a server both drafts and
            assists, there may be more: what the assistant is asked does not wait for streams that nobody is
            reading just then, since these may in turn wait for its answer.
        requests_per_minute: as many may go out at once, and after that one whenever its share of a minute is over.
        tokens_per_minute: read and written. What a request costs is known when it is over, so it is paid for by
            those that follow: each waits until what earlier ones were billed is within the rate.

    Raises:
        ValueError: one of them is not above zero.
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        whole = self.concurrency
        if whole is not None and (isinstance(whole, bool) or not isinstance(whole, int) or whole < 1):
            raise ValueError(f"concurrency is a whole number above 0, or None for no limit; not {whole!r}")
        for name in ("requests_per_minute", "tokens_per_minute"):
            rate: object = getattr(self, name)
            good = isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 < rate < math.inf
            if rate is not None and not good:
                raise ValueError(f"{name} is a number above 0, or None for no limit; not {rate!r}")


def checked_limits(limits: Limits | None) -> Limits | None:
    """The limits as they are.

    Raises:
        TypeError: these are the limits of something else.
    """
    if not (limits is None or isinstance(limits, Limits)):
        raise TypeError("limits are cosd_providers.Limits; those of an HTTP client go into its `http_client`")
    return limits


class Limiter:
    """Makes the requests to one server wait.

    Args:
        limits: what may be sent.

    Attributes:
        sent: requests that count, so far.

    Raises:
        TypeError: these are the limits of something else.
    """

    def __init__(self, limits: Limits | None) -> None:
        self.limits = checked_limits(limits) or Limits()
        self.sent = 0
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    @asynccontextmanager
    async def slot(self, usage: Usage | None, *, draft: bool) -> AsyncGenerator[Slot]:
        """One of the requests that may be under way, as long as the block lasts; waits for it.

        Args:
            usage: where it is billed; None for one that does not count.
            draft: whether it is a draft's stream, which may wait, open, for other requests.
        """
        loop = self._of_this_loop()
        slot = Slot(loop.queue if usage is not None else _Queue(None), draft=draft)
        await slot.take()
        self.sent += usage is not None
        try:
            yield slot
        finally:
            slot.leave()
            if usage is not None:
                loop.over(usage)

    async def admit(self, usage: Usage) -> None:
        """Waits until one more request may be sent, the first one or one that is sent again."""
        await self._of_this_loop().admit(usage)

    def _of_this_loop(self) -> _Loop:
        running = asyncio.get_running_loop()
        if running not in self._loops:
            self._loops = {loop: kept for loop, kept in self._loops.items() if not loop.is_closed()}
            self._loops[running] = _Loop(self.limits)
        return self._loops[running]


class Slot:
    """The place of one request among those that are under way."""

    def __init__(self, queue: _Queue, *, draft: bool) -> None:
        self._draft = draft
        self._queue = queue
        self._paused = False

    async def take(self) -> None:
        """Waits for the place."""
        await self._queue.take(self._draft)

    def leave(self) -> None:
        """Gives the place to the next one."""
        self._queue.leave()

    def pause(self) -> None:
        """Nobody is reading until it goes on."""
        if self._draft and not self._paused:
            self._paused = True
            self._queue.paused += 1
            self._queue.wake()

    def go_on(self) -> None:
        """Somebody is reading."""
        if self._paused:
            self._paused = False
            self._queue.paused -= 1


class _Queue:
    """Who is under way, and who waits: drafts until one is over, others until one is over or paused.

    So no request waits for a stream that waits for it: a paused draft goes on when the others are answered, and
    these wait for nothing but for one another and for drafts that are being read.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = math.inf if limit is None else limit
        self.under_way = 0
        self.paused = 0
        self._drafts: deque[anyio.Event] = deque()
        self._others: deque[anyio.Event] = deque()

    async def take(self, draft: bool) -> None:
        if self._free(draft):
            self.under_way += 1
            return
        waiting = self._drafts if draft else self._others
        place = anyio.Event()
        waiting.append(place)
        try:
            await place.wait()
        except BaseException:
            if place.is_set():
                self.leave()
            else:
                waiting.remove(place)
            raise

    def leave(self) -> None:
        """One less is under way."""
        self.under_way -= 1
        self.wake()

    def wake(self) -> None:
        """Lets go on who may: first those that a draft may be waiting for."""
        for waiting, draft in ((self._others, False), (self._drafts, True)):
            while waiting and self._free(draft):
                self.under_way += 1
                waiting.popleft().set()

    def _free(self, draft: bool) -> bool:
        return self.under_way - (0 if draft else self.paused) < self._limit


class _Loop:
    """The state within one event loop, to which the library's limiters are bound."""

    def __init__(self, limits: Limits) -> None:
        self.queue = _Queue(limits.concurrency)
        self._requests = _limiter(limits.requests_per_minute)
        self._tokens = _limiter(limits.tokens_per_minute)
        self._turn = anyio.Lock()  # one after the other, in the order in which they came
        self._counted: WeakKeyDictionary[Usage, int] = WeakKeyDictionary()  # billed tokens that were seen
        self._over: set[Usage] = set()  # had a request that is over: its bill must not be lost with its caller
        self._debt = 0.0  # tokens that were billed and not yet waited for

    def over(self, usage: Usage) -> None:
        if self._tokens is not None:
            self._over.add(usage)

    async def admit(self, usage: Usage) -> None:
        if self._requests is None and self._tokens is None:
            return
        async with self._turn:
            if self._tokens is not None:
                await self._pay(self._tokens, usage)
            if self._requests is not None:
                await self._requests.acquire()

    async def _pay(self, tokens: AsyncLimiter, usage: Usage) -> None:
        self._settle()
        self._counted.setdefault(usage, usage.prompt_tokens + usage.completion_tokens)
        while self._debt > 0:
            part = min(self._debt, tokens.max_rate)
            await tokens.acquire(part)
            self._debt -= part

    def _settle(self) -> None:
        """Adds what was billed since the last time."""
        for usage, counted in [*self._counted.items()]:
            billed = usage.prompt_tokens + usage.completion_tokens
            self._debt += billed - counted
            self._counted[usage] = billed
        self._over.clear()


def _limiter(rate: float | None) -> AsyncLimiter | None:
    """So much a minute; of less than one, one in as many minutes as it takes."""
    if rate is None:
        return None
    return AsyncLimiter(rate, _MINUTE) if rate >= 1 else AsyncLimiter(1, _MINUTE / rate)
