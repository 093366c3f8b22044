"""What one answer may spend: requests and billed tokens, over all of its endpoints together."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_providers.contract import Usage
from cosd_providers.errors import BudgetError, BudgetTimeoutError

_HINT = 'Allow more, or let the answer end there: on_budget="end" (--on-budget end).'


class Budget:
    """The limits of one answer; every ledger asks it before a request is sent.

    Args:
        ledgers: the draft's first, then the assistants'.
        max_requests: generation requests, those sent again included.
        max_billed_tokens: tokens read and written. They count as the servers bill them, and the tokens of a draft that
            is under way as they come; what it has read counts when its server tells. So what is under way when the
            limit is reached may pass it; nothing more is sent.
    """

    def __init__(
        self, ledgers: Sequence[Usage], *, max_requests: int | None = None, max_billed_tokens: int | None = None
    ) -> None:
        self._ledgers = ledgers
        self._max_requests = max_requests
        self._max_billed_tokens = max_billed_tokens
        self._written = 0  # tokens of the draft under way, as they came
        self._billed = 0  # what the draft's server had billed when that draft began
        for ledger in ledgers:
            ledger.guard = self.check

    def check(self) -> None:
        """Before a request is sent.

        Raises:
            BudgetError: a limit is reached.
        """
        sent = sum(ledger.requests + ledger.retries for ledger in self._ledgers)
        if self._max_requests is not None and sent >= self._max_requests:
            raise _reached("max_requests", f"max_requests={self._max_requests} is reached ({sent} were sent)")
        self._check_tokens()

    def begin_draft(self) -> None:
        """A draft begins: its tokens are counted as they come."""
        self._written, self._billed = 0, self._ledgers[0].completion_tokens

    def wrote(self) -> None:
        """The draft under way wrote a token.

        Raises:
            BudgetError: a limit is reached.
        """
        self._written += 1
        self._check_tokens()

    def _check_tokens(self) -> None:
        if self._max_billed_tokens is None:
            return
        unbilled = max(0, self._written - (self._ledgers[0].completion_tokens - self._billed))
        spent = unbilled + sum(ledger.prompt_tokens + ledger.completion_tokens for ledger in self._ledgers)
        if spent >= self._max_billed_tokens:
            words = f"max_billed_tokens={self._max_billed_tokens} is reached ({spent} were billed)"
            raise _reached("max_billed_tokens", words)


def timed_out(seconds: float) -> BudgetTimeoutError:
    """The error for an answer that took too long."""
    error = BudgetTimeoutError(f"the answer took longer than timeout={seconds:g} seconds", hint=_HINT)
    error.limit = "timeout"
    return error


def _reached(limit: str, words: str) -> BudgetError:
    error = BudgetError(words, hint=_HINT)
    error.limit = limit
    return error
