"""The ledger of one endpoint: the requests sent to it, and the tokens that it bills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, weakref_slot=True, eq=False)
class Usage:
    """The ledger of one endpoint: requests sent and tokens billed. Adapters update it as they send requests.

    Attributes:
        requests: number of generation requests sent, without retries.
        retries: number of retries.
        prompt_tokens: tokens read by the model, including cached tokens.
        completion_tokens: tokens written by the model.
        cached_tokens: prompt tokens that the server took from its cache.
        estimated_tokens: the part of `prompt_tokens` that is an estimate, because the server did not report it and it
            is not known otherwise. An estimate is rather too high than too low.
        unreported: number of whole answers whose prompt tokens the server did not report.
        first_token_seconds: seconds from the first request to the first token or answer; None until then.
        busy_seconds: seconds during which at least one request was in flight.
        strategies: number of questions answered by each strategy, e.g. `{"list": 12}`; empty for a draft.
        warnings: sentences for a reader of the answer, e.g. that parts of it may be there twice.
        guard: a function that is called before each request and each retry; it raises an error to prevent sending.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated_tokens: int = 0
    unreported: int = 0
    first_token_seconds: float | None = None
    busy_seconds: float = 0.0
    strategies: dict[str, int] = field(default_factory=dict[str, int])
    warnings: list[str] = field(default_factory=list[str])
    guard: Callable[[], None] | None = field(default=None, repr=False)
    _in_flight: int = field(default=0, repr=False)
    _since: float = field(default=0.0, repr=False)
    _first_sent: float | None = field(default=None, repr=False)

    def sent(self, now: float) -> None:
        """Count a request that is sent at `now`, in seconds of a monotonic clock.

        Raises:
            BudgetError: `guard` refuses the request, which must then not be sent.
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
        """Count a retry. Raises the same errors as `sent`."""
        if self.guard is not None:
            self.guard()
        self.retries += 1

    def bill(
        self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, *, estimated: bool = False
    ) -> None:
        """Add the tokens of an answer: the numbers read (known or `estimated`), written, and taken from the cache."""
        self.prompt_tokens += prompt_tokens
        self.estimated_tokens += prompt_tokens if estimated else 0
        self.completion_tokens += completion_tokens
        self.cached_tokens += cached_tokens

    def answered_by(self, strategy: str, places: int) -> None:
        """Count `places` questions as answered by a strategy."""
        if places:
            self.strategies[strategy] = self.strategies.get(strategy, 0) + places

    def warn(self, words: str) -> None:
        """Add a warning, unless the ledger already has it."""
        if words not in self.warnings:
            self.warnings.append(words)

    def answered(self, now: float) -> None:
        """Record the time of the first token or answer; later calls have no effect."""
        if self.first_token_seconds is None and self._first_sent is not None:
            self.first_token_seconds = now - self._first_sent

    def closed(self, now: float) -> None:
        """Count a request as finished, whatever its outcome."""
        self._in_flight -= 1
        if not self._in_flight:
            self.busy_seconds += now - self._since
