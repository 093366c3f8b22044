"""A circuit breaker, so that an assistant that is down does not delay every answer of a fusion."""

from __future__ import annotations

import time
from collections.abc import Callable

from cosd_providers.errors import ProviderError

OPEN_SECONDS = 30.0
"""Number of seconds for which an assistant is left out after a failure; the next answer then tries it again.

If the assistant's server asked for a certain wait (`retry-after`), this wait counts instead, up to an hour.
"""

_LONGEST = 3600.0


class CircuitBreaker:
    """The state of each assistant of a fusion.

    While the circuit of an assistant is *closed*, the assistant is asked. A failure *opens* the circuit: answers that
    start in the next `OPEN_SECONDS`, or before the server's `retry-after`, leave the assistant out. Then the circuit is
    *half-open*: the next answer tries the assistant, while other answers still leave it out. `answered` closes the
    circuit, and `failed` opens it again.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opened: dict[int, tuple[ProviderError, float]] = {}

    def failed(self, assistant: int, error: ProviderError) -> None:
        """Open an assistant's circuit."""
        wait = OPEN_SECONDS if error.retry_after is None else min(error.retry_after, _LONGEST)
        self._opened[assistant] = error, self._clock() + wait

    def answered(self, assistant: int) -> None:
        """Close an assistant's circuit."""
        self._opened.pop(assistant, None)

    def left_out(self) -> dict[int, ProviderError]:
        """The assistants to leave out of an answer that starts now, with the reasons.

        The answer tries each assistant that has been left out long enough. For as long again, no other answer tries
        that assistant.
        """
        now = self._clock()
        left_out: dict[int, ProviderError] = {}
        for assistant, (error, until) in self._opened.items():
            if now < until:
                left_out[assistant] = error
            else:
                self.failed(assistant, error)
        return left_out
