"""Assistants that have failed, so that not every answer of a fusion waits for them again."""

from __future__ import annotations

import time
from collections.abc import Callable

from cosd_providers.errors import ProviderError

REST_SECONDS = 30.0
"""After an assistant has failed, only one answer in so many seconds tries it again."""


class Absences:
    """Which assistants of one fusion have failed, and when.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[int, tuple[ProviderError, float]] = {}

    def failed(self, assistant: int, error: ProviderError) -> None:
        """It has failed just now."""
        self._failed[assistant] = error, self._clock()

    def back(self, assistant: int) -> None:
        """It has answered."""
        self._failed.pop(assistant, None)

    def without(self) -> dict[int, ProviderError]:
        """Those that an answer that begins now leaves out, and why. The others it tries, and it alone for a while."""
        now = self._clock()
        left_out: dict[int, ProviderError] = {}
        for assistant, (error, since) in self._failed.items():
            if now - since < REST_SECONDS:
                left_out[assistant] = error
            else:
                self._failed[assistant] = error, now
        return left_out
