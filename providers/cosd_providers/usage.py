"""The ledger of one endpoint: the requests sent to it and the tokens that it billed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Usage"]


@dataclass(slots=True, weakref_slot=True, eq=False)
class Usage:
    """Requests sent to one endpoint and tokens billed by it. Adapters update it as they go.

    Attributes:
        requests: generation requests sent.
        retries: requests sent again.
        prompt_tokens: tokens read by the model, cached ones included.
        completion_tokens: tokens written by the model.
        cached_tokens: prompt tokens that the server took from its cache.
        first_token_seconds: seconds from the first request to its first token or answer; None before it.
        busy_seconds: seconds during which at least one request was in flight.
        strategies: number of questions answered by each strategy, e.g. `{"list": 12}`; empty for a draft.
        guard: called before each request and each retry; it raises to prevent sending.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token_seconds: float | None = None
    busy_seconds: float = 0.0
    strategies: dict[str, int] = field(default_factory=dict[str, int])
    guard: Callable[[], None] | None = field(default=None, repr=False)
    _in_flight: int = field(default=0, repr=False)
    _since: float = field(default=0.0, repr=False)
    _first_sent: float | None = field(default=None, repr=False)

    def sent(self, now: float) -> None:
        """Count a request that goes out at `now`, in seconds of a monotonic clock.

        Raises:
            BudgetError: raised by `guard`; the request must not be sent.
        """
        if self.guard is not None:
            self.guard()
        self.requests += 1
        if self._first_sent is None:
            self._first_sent = now
        if not self._in_flight:
            self._since = now
        self._in_flight += 1

    def sent_again(self) -> None:
        """Count a retry. Raises like `sent`."""
        if self.guard is not None:
            self.guard()
        self.retries += 1

    def bill(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        """Add the tokens that the server read, wrote, and took from its cache."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cached_tokens += cached_tokens

    def answered_by(self, strategy: str, places: int) -> None:
        """Count questions answered by a strategy."""
        if places:
            self.strategies[strategy] = self.strategies.get(strategy, 0) + places

    def answered(self, now: float) -> None:
        """Note the time of the first token or answer."""
        if self.first_token_seconds is None and self._first_sent is not None:
            self.first_token_seconds = now - self._first_sent

    def closed(self, now: float) -> None:
        """Count a request as finished, for any reason."""
        self._in_flight -= 1
        if not self._in_flight:
            self.busy_seconds += now - self._since
