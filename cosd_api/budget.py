"""Limits of requests and billed tokens: of one answer over all of its endpoints, and of many answers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from cosd_providers.errors import BudgetError, BudgetTimeoutError, ProviderError
from cosd_providers.usage import Usage

BYTES = 4
"""Bytes of text in a token, if no better number is known."""

_SPILL = 16
"""Tokens beyond its limit that the questions of an answer may write; they count when they are billed."""
_ROOM = 2
"""An answer beside others may bill at least this many times the largest bill of its kind."""

_OR = 'or let the answer end there: on_budget="end" (--on-budget end).'


class Spending(Usage):
    """Usage of one call of a provider, with an estimate of its cost until its bill comes.

    Attributes:
        guess: estimate of the tokens that it reads.
        written: tokens of a draft so far.
    """

    __slots__ = ("_budget", "_drafts", "_ledger", "guess", "written")

    def __init__(self, budget: Budget, ledger: Usage, guess: int, *, drafts: bool) -> None:
        super().__init__(guard=budget.check)
        self._budget = budget
        self._ledger = ledger
        self._drafts = drafts
        self.guess = guess
        self.written = 0

    def sent(self, now: float) -> None:
        """Record that a request goes out; see `Usage`. It counts here until the call is over; its time counts in the
        ledger at once.
        """
        super().sent(now)
        self._ledger.sent(now)
        self._ledger.requests -= 1

    def answered(self, now: float) -> None:
        """Record that the first token or answer has come; see `Usage`."""
        super().answered(now)
        self._ledger.answered(now)

    def closed(self, now: float) -> None:
        """Record that a request is over; see `Usage`."""
        super().closed(now)
        self._ledger.closed(now)

    @property
    def unbilled(self) -> int:
        """Tokens that the call has most likely cost beyond its bill; 0 before it was sent."""
        if not self.requests + self.retries:
            return 0
        # A draft is one request, whose bill replaces the guess; a question may take several requests.
        read = 0 if self._drafts and self.prompt_tokens else max(0, self.guess - self.prompt_tokens)
        return read + max(0, self.written - self.completion_tokens)

    def settle(self) -> None:
        """Add the call's bill to the endpoint's, when it is over."""
        ledger = self._ledger
        ledger.requests += self.requests
        ledger.retries += self.retries
        ledger.bill(self.prompt_tokens, self.completion_tokens, self.cached_tokens)
        for strategy, places in self.strategies.items():
            ledger.answered_by(strategy, places)


class Budget:
    """The limits of one answer, checked before every request.

    No request is sent after a limit is reached. Tokens count as the servers bill them. Requests in flight count by
    estimate until billed: a draft's tokens as they come, and read text at the rate of the endpoint's earlier bills.
    Before an endpoint's first bill, the prompt counts as the draft's endpoint counts it, if it does, else at four bytes
    a token; places in one question read their text once. Requests that are never billed, because the server reports
    nothing or because they were cancelled, stay estimated. So requests in flight can overshoot a limit, as can too low
    an estimate; after too high an estimate the answer ends a little early.

    Args:
        ledgers: the draft's first, then the assistants'.
        max_requests: generation requests, retries included. Requests that discover a server's properties count nowhere:
            not here, not as tokens, and not in `FusionResult.usage`.
        max_billed_tokens: tokens read and written.
    """

    def __init__(
        self, ledgers: Sequence[Usage], *, max_requests: int | None = None, max_billed_tokens: int | None = None
    ) -> None:
        self._ledgers = ledgers
        self._max_requests = max_requests
        self._max_billed_tokens = max_billed_tokens
        self._under_way: list[Spending] = []
        self.counts_tokens = max_billed_tokens is not None
        self._never_billed = [0] * len(ledgers)  # tokens, estimated
        self._unreported = [0] * len(ledgers)  # tokens of complete calls whose reading was not reported
        self._rates: dict[int, float] = {}  # tokens in a byte of text, as billed

    @property
    def unreported(self) -> list[int]:
        """An estimate of the tokens read, for each endpoint that does not report them; 0 for the others."""
        return [0 if ledger.prompt_tokens else n for ledger, n in zip(self._ledgers, self._unreported, strict=True)]

    @property
    def never_billed(self) -> list[int]:
        """An estimate, for each endpoint, of the tokens of calls that are over and will not be billed."""
        return [*self._never_billed]

    def expect(self, prompt: int, size: int, *, counted: bool) -> None:
        """Check, before any request is sent, that some answer can keep the limits.

        Args:
            prompt: tokens of the prompt that the draft reads.
            size: bytes of the prompt.
            counted: whether the endpoint counted the tokens.

        Raises:
            BudgetError: the limit is below the least that an answer can cost.
        """
        if counted:
            self._rates[0] = prompt / size
        if self._max_billed_tokens is not None and self._max_billed_tokens <= prompt:
            least = f"the draft reads {'' if counted else 'about '}{prompt} tokens of prompt and writes at least one"
            words = f"max_billed_tokens={self._max_billed_tokens} is less than any answer costs: {least}"
            raise _reached("max_billed_tokens", f"{words}. Nothing was sent", f"Allow {prompt + 1} at the very least.")

    @contextmanager
    def spending(self, endpoint: int, sizes: Sequence[int], *, drafts: bool = False) -> Iterator[Spending]:
        """Account for one call while it is in progress.

        Args:
            endpoint: its index in `ledgers`.
            sizes: bytes of each text that it continues.
            drafts: whether it is a draft.
        """
        rate = self._rates.get(endpoint)
        guess = -(-max(sizes, default=0) // BYTES) if rate is None else round(rate * sum(sizes))
        call = Spending(self, self._ledgers[endpoint], guess, drafts=drafts)
        self._under_way.append(call)
        refused = whole = False
        try:
            yield call
            whole = True
        except ProviderError:
            refused = not call.written  # most likely no text was read
            raise
        finally:
            self._under_way.remove(call)
            call.settle()
            if call.prompt_tokens and whole and not (drafts and call.requests + call.retries > 1):
                self._rates[endpoint] = call.prompt_tokens / max(1, sum(sizes))
            elif not call.prompt_tokens and not refused:
                self._never_billed[endpoint] += call.unbilled
                self._unreported[endpoint] += call.guess if whole and call.requests else 0

    def answered_by(self, endpoint: int, strategy: str) -> None:
        """Count a place that a strategy has answered, whenever its request was sent."""
        self._ledgers[endpoint].answered_by(strategy, 1)

    def check(self) -> None:
        """Check both limits before a request is sent.

        Raises:
            BudgetError: a limit is reached.
        """
        sent = sum(one.requests + one.retries for one in (*self._ledgers, *self._under_way))
        if self._max_requests is not None and sent >= self._max_requests:
            raise _reached("max_requests", f"max_requests={self._max_requests} is reached ({sent} were sent)")
        self.check_tokens()

    def check_tokens(self) -> None:
        """Check the limit of tokens before a request is sent, and as a draft comes.

        Raises:
            BudgetError: the limit of tokens is reached.
        """
        if self._max_billed_tokens is None:
            return
        billed = sum(one.prompt_tokens + one.completion_tokens for one in (*self._ledgers, *self._under_way))
        guessed = sum(self._never_billed) + sum(call.unbilled for call in self._under_way)
        if billed + guessed >= self._max_billed_tokens:
            more = f", and about {guessed} more were read or written without a bill so far" if guessed else ""
            words = f"max_billed_tokens={self._max_billed_tokens} is reached ({billed} were billed{more})"
            raise _reached("max_billed_tokens", words)


def timed_out(seconds: float, *, started: bool) -> BudgetTimeoutError:
    """The error for an answer that took too long; an answer that was not `started` has no text to end with."""
    if started:
        words = f"the answer took longer than timeout={seconds:g} seconds"
        hint = f"Allow more (generate(timeout=...), or --timeout), {_OR}"
    else:
        words = f"the servers were not identified within timeout={seconds:g} seconds, so there is no text yet"
        hint = "Allow more (generate(timeout=...), or --timeout)."
    error = BudgetTimeoutError(words, hint=hint)
    error.limit = "timeout"
    return error


def _reached(limit: str, words: str, hint: str = f"Allow more, {_OR}") -> BudgetError:
    error = BudgetError(words, hint=hint)
    error.limit = limit
    return error


@dataclass
class SharedLimit:
    """Limit of billed tokens of many answers, shared by the answers in progress.

    Attributes:
        most: the limit; None without one.
        billed: returns the number of tokens billed so far.
        workers: number of answers that may be in progress at a time, now.
        reached: whether the rest of the limit was not enough for an answer.
    """

    most: int | None
    billed: Callable[[], int]
    workers: int = 0
    reached: bool = False
    _reserved: int = field(default=0, init=False)  # tokens that the answers in flight may bill
    _flying: int = field(default=0, init=False)  # answers in progress
    _largest: dict[str, int] = field(default_factory=dict[str, int], init=False)  # bill of an answer, by kind
    _landed: anyio.Event = field(default_factory=anyio.Event, init=False)  # set, and replaced, when an answer has come

    async def share(self, name: str, guess: int, least: int, goes_on: Callable[[], bool]) -> int | None:
        """The tokens that an answer may bill: an equal share of the rest, or all of the rest once nothing is in flight.

        If the share might not be enough, the call waits for the answers in flight. None if there is no limit, or if the
        rest is not enough: then the limit is reached.

        Args:
            name: kind of the answer: answers of one kind bill about as much.
            guess: tokens that its first answer may bill.
            least: tokens without which the answer need not be tried.
            goes_on: returns whether any answer is still wanted.
        """
        if self.most is None:
            return None
        while goes_on():
            most = self._largest.get(name, 0)
            left = self.most - self.billed() - self._reserved
            each = left // max(1, self.workers - self._flying) - _SPILL
            if each >= max(_ROOM * (most or guess), least):
                return each
            if not self._flying:
                if left - _SPILL >= max(most, least, 1):
                    return left - _SPILL
                self.reached = True
                return None
            await self._landed.wait()
        return None

    def take(self, share: int | None) -> None:
        """Count an answer as in progress, and reserve its share."""
        self._flying += 1
        self._reserved += 0 if share is None else share + _SPILL

    def give_back(self, share: int | None) -> None:
        """Count an answer as no longer in progress, whatever its outcome."""
        self._flying -= 1
        self._reserved -= 0 if share is None else share + _SPILL
        self._notify()

    def ended(self) -> None:
        """Count a worker as gone."""
        self.workers -= 1
        self._notify()

    def note(self, name: str, billed: int) -> None:
        """Note the bill of an answer of a kind."""
        self._largest[name] = max(self._largest.get(name, 0), billed)

    def words(self) -> str:
        """The reason why no more answers are requested, once the limit is reached."""
        words = f"max_billed_tokens={self.most} is reached ({self.billed():,} were billed)"
        return f"{words}: allow more, and what is known is not asked again"

    def _notify(self) -> None:
        """Wake the tasks that wait for a part of the limit."""
        self._landed.set()
        self._landed = anyio.Event()
