"""Rate limits for one server: requests wait in the client, so that the server does not have to refuse them.

Only generation requests count. This is the only module that imports the limiter library.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import anyio
from aiolimiter import AsyncLimiter

from cosd_providers.usage import Usage

_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the requests that one provider sends to its server. They apply to each event loop; None means no limit.

    Only generation requests count. Retries count towards both rates.

    Attributes:
        concurrency: maximum number of requests in flight. A draft's stream counts until it is closed. If the same
            server drafts and assists, the maximum may be exceeded: a request to the assistant does not wait for a
            draft's stream that is not being read, because that stream may itself be waiting for the assistant.
        requests_per_minute: maximum number of requests per minute. After a burst of this number of requests, further
            requests are spread evenly over time.
        tokens_per_minute: maximum number of tokens per minute, read and written. The cost of a request is known only
            when it ends, so each request waits until the tokens that were billed before it are within the limit.

    Raises:
        ValueError: a limit is zero or negative, or not a number.
    """

    concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        whole = self.concurrency
        if whole is not None and (isinstance(whole, bool) or not isinstance(whole, int) or whole < 1):
            raise ValueError(f"concurrency must be a whole number above 0, or None for no limit, not {whole!r}")
        for name in ("requests_per_minute", "tokens_per_minute"):
            rate: object = getattr(self, name)
            good = isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 < rate < math.inf
            if rate is not None and not good:
                raise ValueError(f"{name} must be a number above 0, or None for no limit, not {rate!r}")


def checked_limits(limits: Limits | None) -> Limits | None:
    """Check the type of limits, and return them unchanged.

    Raises:
        TypeError: `limits` is neither a `Limits` object nor None.
    """
    if not (limits is None or isinstance(limits, Limits)):
        raise TypeError("limits must be cosd_providers.Limits; limits of an HTTP client belong to the `http_client`")
    return limits


class Limiter:
    """A queue for the requests to one server; None means no limits.

    Raises:
        TypeError: `limits` is not a `Limits` object.
    """

    def __init__(self, limits: Limits | None) -> None:
        self.limits = checked_limits(limits) or Limits()
        self.sent = 0  # number of generation requests so far
        self._limited = self.limits != Limits()
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    async def enter(self, usage: Usage, *, draft: bool) -> Slot | None:
        """Wait until another request may be in flight, and return its slot; None if there are no limits.

        A draft's stream (`draft`) may stay open while it waits for other requests.
        """
        slot = None
        if self._limited:
            loop = self._of_this_loop()
            slot = Slot(loop, usage, draft=draft)
            await loop.queue.take(draft)
        self.sent += 1
        return slot

    async def admit(self, usage: Usage) -> None:
        """Wait until the rates allow another request or retry."""
        if self._limited:
            await self._of_this_loop().admit(usage)

    def _of_this_loop(self) -> _Loop:
        running = asyncio.get_running_loop()
        if running not in self._loops:
            self._loops = {loop: kept for loop, kept in self._loops.items() if not loop.is_closed()}
            self._loops[running] = _Loop(self.limits)
        return self._loops[running]


class Slot:
    """Permission for one request to be in flight."""

    def __init__(self, loop: _Loop, usage: Usage, *, draft: bool) -> None:
        self._loop = loop
        self._usage = usage
        self._draft = draft

    def leave(self) -> None:
        """Pass the slot to the next request."""
        self._loop.queue.leave()
        self._loop.over(self._usage)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let other requests pass during this block, in which the caller is not reading the draft's stream."""
        queue = self._loop.queue
        queue.paused += self._draft
        queue.wake()
        try:
            yield
        finally:
            queue.paused -= self._draft


class _Queue:
    """The number of requests in flight, and the requests that are waiting for a slot.

    A draft waits until a request ends. Any other request waits until a request ends or a draft pauses. Thus, no request
    waits for a stream that is waiting for it. A paused draft resumes when the other requests have been answered, and
    these requests wait only for one another and for drafts that are being read.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = math.inf if limit is None else limit
        self.in_flight = 0
        self.paused = 0
        self._drafts: deque[anyio.Event] = deque()
        self._others: deque[anyio.Event] = deque()

    async def take(self, draft: bool) -> None:
        if self._free(draft):
            self.in_flight += 1
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
        """Record that a request has ended."""
        self.in_flight -= 1
        self.wake()

    def wake(self) -> None:
        """Give free slots to waiting requests. Requests for which a draft may be waiting come first."""
        for waiting, draft in ((self._others, False), (self._drafts, True)):
            while waiting and self._free(draft):
                self.in_flight += 1
                waiting.popleft().set()

    def _free(self, draft: bool) -> bool:
        return self.in_flight - (0 if draft else self.paused) < self._limit


class _Loop:
    """The state for one event loop. Each loop has its own, because a limiter of the limiter library serves one loop."""

    def __init__(self, limits: Limits) -> None:
        self.queue = _Queue(limits.concurrency)
        self._requests = _limiter(limits.requests_per_minute)
        self._tokens = _limiter(limits.tokens_per_minute)
        self._turn = anyio.Lock()  # requests are admitted in the order of their arrival
        self._counted: WeakKeyDictionary[Usage, int] = WeakKeyDictionary()  # billed tokens that were already counted
        self._over: set[Usage] = set()  # usage of ended requests, kept until its tokens are counted
        self._debt = 0.0  # number of billed tokens for which no request has waited yet

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
        """Add the tokens that were billed since the last call to the debt."""
        for usage, counted in [*self._counted.items()]:
            billed = usage.prompt_tokens + usage.completion_tokens
            self._debt += billed - counted
            self._counted[usage] = billed
        self._over.clear()


def _limiter(rate: float | None) -> AsyncLimiter | None:
    """Create a limiter for a rate per minute. A rate below 1 admits one request every 1 / rate minutes."""
    if rate is None:
        return None
    return AsyncLimiter(rate, _MINUTE) if rate >= 1 else AsyncLimiter(1, _MINUTE / rate)
