"""A circuit breaker for assistants, so that not every answer of a fusion waits for an assistant that is down."""

from __future__ import annotations

import time
from collections.abc import Callable

from cosd_providers.errors import ProviderError

OPEN_SECONDS = 30.0
"""Time for which an assistant is left out after a failure; then one answer tries it again."""


class CircuitBreaker:
    """The state of each assistant of a fusion.

    While the circuit of an assistant is *closed*, the assistant is asked. A failure *opens* the circuit: answers that
    start in the next `OPEN_SECONDS` leave the assistant out. Then the circuit is *half-open*: the next answer tries the
    assistant, while other answers still leave it out. `answered` closes the circuit, `failed` opens it again.

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
        """The assistants that an answer leaves out if it starts now, with the reasons.

        This answer tries each assistant whose time is over. For the next `OPEN_SECONDS` no other answer tries it.
        """
        now = self._clock()
        left_out: dict[int, ProviderError] = {}
        for assistant, (error, since) in self._opened.items():
            if now - since < OPEN_SECONDS:
                left_out[assistant] = error
            else:
                self._opened[assistant] = error, now
        return left_out
