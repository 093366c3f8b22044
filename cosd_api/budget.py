"""Limits on requests and billed tokens, for a single answer and for many answers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from cosd_providers.errors import BudgetError, BudgetTimeoutError, ProviderError
from cosd_providers.usage import Usage

BYTES = 4
"""Assumed number of bytes of text per token, until a measured number is known."""

_DENSE = 2
"""Assumed number of bytes per token for the bill of a call whose provider bills nothing, if no number is measured."""

_SPILL = 16
"""Number of tokens by which one answer may exceed its share, because its questions count only when they are billed."""
_ROOM = 2
"""While other answers are in progress, a share is at least this number times the largest bill of the same kind."""

_OR = 'or let the answer end there: on_budget="end" (--on-budget end).'


class Spending(Usage):
    """The usage of one call of a provider, with an estimate of its cost until the bill arrives.

    Attributes:
        guess: estimated number of tokens that the call reads.
        written: number of tokens that a draft has written so far.
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
        """Record that a request is being sent; see `Usage`.

        The endpoint's ledger records the time at once. The call counts the request itself until the call is over.
        """
        super().sent(now)
        self._ledger.sent(now)
        self._ledger.requests -= 1

    def answered(self, now: float) -> None:
        """Record that the first token or answer has arrived; see `Usage`."""
        super().answered(now)
        self._ledger.answered(now)

    def closed(self, now: float) -> None:
        """Record that a request is over; see `Usage`."""
        super().closed(now)
        self._ledger.closed(now)

    @property
    def unbilled(self) -> int:
        """The estimated number of tokens that the call has used and not been billed for; 0 before a request is sent."""
        if not self.requests + self.retries:
            return 0
        # A draft is a single request, so its bill replaces the guess. A question may need several requests.
        read = 0 if self._drafts and self.prompt_tokens else max(0, self.guess - self.prompt_tokens)
        return read + max(0, self.written - self.completion_tokens)

    def settle(self) -> None:
        """Add the bill of the completed call to the endpoint's ledger."""
        ledger = self._ledger
        ledger.requests += self.requests
        ledger.retries += self.retries
        ledger.bill(self.prompt_tokens, self.completion_tokens, self.cached_tokens)
        ledger.estimated_tokens += self.estimated_tokens
        ledger.unreported += self.unreported
        for strategy, places in self.strategies.items():
            ledger.answered_by(strategy, places)
        for words in self.warnings:
            ledger.warn(words)


class Budget:
    """The limits of one answer, checked before every request.

    No request is sent after a limit is reached. Tokens count as the servers bill them. Until a request is billed, an
    estimate counts instead: the tokens that a draft has written so far, plus the tokens of the text that the request
    reads. The size of that text is converted into tokens at the rate of the endpoint's earlier bills. Before an
    endpoint's first bill, the rate is four bytes per token, and a question's text counts only once, however many places
    the question is about. If the draft's endpoint can count the tokens of the prompt, that count gives the draft's
    first rate. A call for which its provider bills nothing, e.g. because it was cancelled, is billed with its estimate.
    Therefore an answer can exceed a limit by the cost of its requests in flight, or because an estimate was too low. If
    an estimate was too high, the answer ends a little early.

    Args:
        ledgers: the ledgers of the draft and the assistants, in this order.
        max_requests: limit on generation requests, retries included. Requests that discover a server's properties count
            towards neither limit and are not part of `FusionResult.usage`.
        max_billed_tokens: limit on the tokens that all endpoints read and write.
    """

    def __init__(
        self, ledgers: Sequence[Usage], *, max_requests: int | None = None, max_billed_tokens: int | None = None
    ) -> None:
        self._ledgers = ledgers
        self._max_requests = max_requests
        self._max_billed_tokens = max_billed_tokens
        self._under_way: list[Spending] = []
        self.counts_tokens = max_billed_tokens is not None
        self._rates: dict[int, float] = {}  # billed tokens per byte of text

    def expect(self, prompt: int, size: int, *, counted: bool) -> None:
        """Check, before any request is sent, that the limits allow an answer of at least one token.

        Args:
            prompt: number of tokens in the draft's prompt.
            size: size of the prompt in bytes.
            counted: whether the endpoint counted the tokens; otherwise `prompt` is a guess.

        Raises:
            BudgetError: the limit is lower than the cost of the cheapest answer.
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
            endpoint: index of the endpoint in `ledgers`.
            sizes: size in bytes of each text that the call reads.
            drafts: whether the call is a draft.
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
            refused = not call.written  # a server that wrote nothing most likely read nothing either
            raise
        finally:
            self._under_way.remove(call)
            known = call.prompt_tokens and not call.estimated_tokens
            if known and whole and not (drafts and call.requests + call.retries > 1):
                self._rates[endpoint] = call.prompt_tokens / max(1, sum(sizes))
            elif not call.prompt_tokens and call.requests + call.retries and not refused:
                read = -(-max(sizes, default=0) // _DENSE) if rate is None else call.guess
                call.bill(read, max(0, call.written - call.completion_tokens), estimated=True)
                call.unreported += whole
            call.settle()

    def answered_by(self, endpoint: int, strategy: str) -> None:
        """Count one place that was answered with the given strategy."""
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
        """Check the limit on tokens, before a request is sent and while a draft arrives.

        Raises:
            BudgetError: the limit on tokens is reached.
        """
        if self._max_billed_tokens is None:
            return
        everything = (*self._ledgers, *self._under_way)
        billed = sum(one.prompt_tokens + one.completion_tokens for one in everything)
        guessed = sum(call.unbilled for call in self._under_way)
        if billed + guessed >= self._max_billed_tokens:
            estimated = sum(one.estimated_tokens for one in everything)
            some = f", {estimated} of them by estimate" if estimated else ""
            more = f", and about {guessed} more were read or written without a bill so far" if guessed else ""
            words = f"max_billed_tokens={self._max_billed_tokens} is reached ({billed} were billed{some}{more})"
            raise _reached("max_billed_tokens", words)


def timed_out(seconds: float, failed: ProviderError | None, *, started: bool) -> BudgetTimeoutError:
    """The error for an answer that took too long; `started` is False if the servers had not been identified yet.

    For `failed`, see `late`.
    """
    if started:
        words = f"the answer took longer than timeout={seconds:g} seconds"
        return late(words, failed, f"Allow more (generate(timeout=...), or --timeout), {_OR}")
    words = f"the servers were not identified within timeout={seconds:g} seconds, so there is no text yet"
    return late(words, failed, "Allow more (generate(timeout=...), or --timeout).")


def late(words: str, failed: ProviderError | None, hint: str = "Allow more.") -> BudgetTimeoutError:
    """The error for a time limit.

    Args:
        words: the message.
        failed: the last failure of a server that has not answered since; None if there is none. It becomes the error's
            cause, and the error has its status.
        hint: a suggested remedy.
    """
    if failed is None:
        error = BudgetTimeoutError(words, hint=hint)
    else:
        words = f"{words}; the last failure was {failed.endpoint}: {failed.args[0]}"
        error = BudgetTimeoutError(words, hint=f"{failed.hint} {hint}".lstrip(), status=failed.status)
        error.request_id, error.retry_after, error.retryable = failed.request_id, failed.retry_after, failed.retryable
        error.__cause__ = failed
    error.limit = "timeout"
    return error


def _reached(limit: str, words: str, hint: str = f"Allow more, {_OR}") -> BudgetError:
    error = BudgetError(words, hint=hint)
    error.limit = limit
    return error


@dataclass
class SharedLimit:
    """A limit on the billed tokens of many answers, shared by the answers in progress.

    Attributes:
        most: the limit; None means no limit.
        billed: returns the number of tokens billed so far.
        workers: current number of workers, each of which has up to one answer in progress.
        reached: whether the remaining tokens were too few for another answer.
    """

    most: int | None
    billed: Callable[[], int]
    workers: int = 0
    reached: bool = False
    _reserved: int = field(default=0, init=False)  # tokens that the answers in progress may bill
    _flying: int = field(default=0, init=False)  # number of answers in progress
    _largest: dict[str, int] = field(default_factory=dict[str, int], init=False)  # largest bill of each kind of answer
    _landed: anyio.Event = field(default_factory=anyio.Event, init=False)  # set and replaced when an answer is over

    async def share(self, name: str, guess: int, least: int, goes_on: Callable[[], bool]) -> int | None:
        """Determine the number of tokens that the next answer may bill.

        The share is an equal part of the remaining tokens. If an equal part might be too small, the call waits until
        other answers are over; if no answer is in progress any more, the share is everything that remains.

        Args:
            name: name of the kind of answer. Answers of the same kind are expected to have similar bills.
            guess: expected bill of the answer; used until an answer of the same kind has been billed.
            least: smallest share with which the answer is worth trying.
            goes_on: returns whether any answer is still wanted.

        Returns:
            None if there is no limit, if no answer is wanted any more, or if the remaining tokens are too few (see
            `reached`).
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
        """Count an answer as over, whatever its outcome, and release its share."""
        self._flying -= 1
        self._reserved -= 0 if share is None else share + _SPILL
        self._notify()

    def ended(self) -> None:
        """Reduce the number of workers by one."""
        self.workers -= 1
        self._notify()

    def note(self, name: str, billed: int) -> None:
        """Record the bill of an answer of the kind `name`."""
        self._largest[name] = max(self._largest.get(name, 0), billed)

    def words(self) -> str:
        """The message that no more answers are requested because the limit is reached."""
        words = f"max_billed_tokens={self.most} is reached ({self.billed():,} were billed)"
        return f"{words}: allow more; answers that are known already are not requested again"

    def _notify(self) -> None:
        """Wake the tasks that wait for a share of the limit."""
        self._landed.set()
        self._landed = anyio.Event()
