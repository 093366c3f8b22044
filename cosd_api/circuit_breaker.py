"""A circuit breaker for assistants: after a failure, not every answer of a fusion waits for the failed assistant."""

from __future__ import annotations

import time
from collections.abc import Callable

from cosd_providers.errors import ProviderError

OPEN_SECONDS = 30.0
"""After a failure an assistant is left out for this long; then one answer tries it again."""


class CircuitBreaker:
    """The state of each assistant of a fusion.

    *Closed*: it is asked. A failure *opens* its circuit: answers that start in the next `OPEN_SECONDS` leave it out.
    Then it is *half-open*: the next answer tries it, and other answers leave it out meanwhile; `answered` closes it,
    `failed` opens it again.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opened: dict[int, tuple[ProviderError, float]] = {}

    def failed(self, assistant: int, error: ProviderError) -> None:
        """Open an assistant's circuit."""
        self._opened[assistant] = error, self._clock()

    def answered(self, assistant: int) -> None:
        """Close an assistant's circuit."""
        self._opened.pop(assistant, None)

    def left_out(self) -> dict[int, ProviderError]:
        """The assistants that an answer which starts now leaves out, with the reason.

        This answer tries the assistants whose time is over, and no other answer does so for the next `OPEN_SECONDS`.
        """
        now = self._clock()
        left_out: dict[int, ProviderError] = {}
        for assistant, (error, since) in self._opened.items():
            if now - since < OPEN_SECONDS:
                left_out[assistant] = error
            else:
                self._opened[assistant] = error, now
        return left_out
