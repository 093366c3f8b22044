"""What one answer may spend: requests and billed tokens, over all of its endpoints together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cosd_providers.errors import BudgetError, BudgetTimeoutError, ProviderError
from cosd_providers.usage import Usage

BYTES = 4
"""Of text in a token, where nothing better is known."""

_OR = 'or let the answer end there: on_budget="end" (--on-budget end).'


class Spending(Usage):
    """What one call of a provider is billed, and what it has most likely cost while no bill is there.

    Attributes:
        guess: tokens that it reads, by the best guess there is.
        written: tokens of a draft, as they came.
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
        """A request goes out; see `Usage`. It counts here until the call is over, its time at the endpoint at once."""
        super().sent(now)
        self._ledger.sent(now)
        self._ledger.requests -= 1

    def answered(self, now: float) -> None:
        """The first token or answer is here; see `Usage`."""
        super().answered(now)
        self._ledger.answered(now)

    def closed(self, now: float) -> None:
        """A request is over; see `Usage`."""
        super().closed(now)
        self._ledger.closed(now)

    def wrote(self) -> None:
        """The draft wrote a token.

        Raises:
            BudgetError: a limit is reached.
        """
        self.written += 1
        self._budget.check_tokens()

    @property
    def unbilled(self) -> int:
        """Tokens that it has most likely cost beyond what was billed: nothing before it was sent."""
        if not self.requests + self.retries:
            return 0
        # A draft is one request, whose bill replaces the guess; of a question there may be several.
        read = 0 if self._drafts and self.prompt_tokens else max(0, self.guess - self.prompt_tokens)
        return read + max(0, self.written - self.completion_tokens)

    def settle(self) -> None:
        """The call is over: what it was billed is the endpoint's."""
        ledger = self._ledger
        ledger.requests += self.requests
        ledger.retries += self.retries
        ledger.bill(self.prompt_tokens, self.completion_tokens, self.cached_tokens)
        for strategy, places in self.strategies.items():
            ledger.answered_by(strategy, places)


class Budget:
    """The limits of one answer; every request asks it before it is sent.

    Args:
        ledgers: the draft's first, then the assistants'.
        max_requests: generation requests, those sent again included. Those by which a server is asked once what it is
            count nowhere: not here, not as tokens, and not in `FusionResult.usage`.
        max_billed_tokens: tokens read and written. They count as the servers bill them. What is under way counts by an
            estimate from the moment at which it is sent until its bill is there: the tokens of a draft as they come,
            and what is read as this endpoint was billed for the same text (or, before its first bill: the prompt as
            the draft's endpoint counts it, if it does, and else four bytes a token, places that are asked about
            together reading their text once). What is never billed, because the server tells nothing, or because it
            was left before, stays estimated. So a limit can be passed by what is under way when it is reached, and by
            as much as an estimate was too low; and where one was too high, the answer ends a little early. Nothing
            more is sent.
    """

    def __init__(
        self, ledgers: Sequence[Usage], *, max_requests: int | None = None, max_billed_tokens: int | None = None
    ) -> None:
        self._ledgers = ledgers
        self._max_requests = max_requests
        self._max_billed_tokens = max_billed_tokens
        self._under_way: list[Spending] = []
        self._never_billed = 0  # tokens, estimated
        self._unreported = [0] * len(ledgers)  # tokens of calls that came to their end, and whose reading nobody told
        self._rates: dict[int, float] = {}  # tokens in a byte of text, as billed

    @property
    def unreported(self) -> list[int]:
        """For each endpoint that does not tell what it has read, an estimate in tokens; 0 for the others."""
        return [0 if ledger.prompt_tokens else n for ledger, n in zip(self._ledgers, self._unreported, strict=True)]

    def expect(self, prompt: int, size: int, *, counted: bool) -> None:
        """Before anything is sent: the draft reads so many tokens of prompt, which has `size` bytes.

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
        """One call under way; `endpoint` as in `ledgers`.

        Args:
            endpoint: whose.
            sizes: bytes of each text that it goes on from.
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
            refused = not call.written  # most likely nothing was read
            raise
        finally:
            self._under_way.remove(call)
            call.settle()
            if call.prompt_tokens and whole and not (drafts and call.requests + call.retries > 1):
                self._rates[endpoint] = call.prompt_tokens / max(1, sum(sizes))
            elif not call.prompt_tokens and not refused:
                self._never_billed += call.unbilled
                self._unreported[endpoint] += call.guess if whole and call.requests else 0

    def check(self) -> None:
        """Before a request is sent.

        Raises:
            BudgetError: a limit is reached.
        """
        sent = sum(one.requests + one.retries for one in (*self._ledgers, *self._under_way))
        if self._max_requests is not None and sent >= self._max_requests:
            raise _reached("max_requests", f"max_requests={self._max_requests} is reached ({sent} were sent)")
        self.check_tokens()

    def check_tokens(self) -> None:
        """Before a request is sent, and as a draft comes.

        Raises:
            BudgetError: the limit of tokens is reached.
        """
        if self._max_billed_tokens is None:
            return
        billed = sum(one.prompt_tokens + one.completion_tokens for one in (*self._ledgers, *self._under_way))
        guessed = self._never_billed + sum(call.unbilled for call in self._under_way)
        if billed + guessed >= self._max_billed_tokens:
            more = f", and about {guessed} more were read or written without a bill so far" if guessed else ""
            words = f"max_billed_tokens={self._max_billed_tokens} is reached ({billed} were billed{more})"
            raise _reached("max_billed_tokens", words)


def timed_out(seconds: float, *, begun: bool) -> BudgetTimeoutError:
    """The error for an answer that took too long; one that was not `begun` has nothing that it could end with."""
    if begun:
        words = f"the answer took longer than timeout={seconds:g} seconds"
        hint = f"Allow more (generate(timeout=...), or --timeout), {_OR}"
    else:
        words = f"the servers had not said what they are after timeout={seconds:g} seconds, and there is nothing yet"
        words += " that an answer could end with"
        hint = "Allow more (generate(timeout=...), or --timeout)."
    error = BudgetTimeoutError(words, hint=hint)
    error.limit = "timeout"
    return error


def _reached(limit: str, words: str, hint: str = f"Allow more, {_OR}") -> BudgetError:
    error = BudgetError(words, hint=hint)
    error.limit = limit
    return error
