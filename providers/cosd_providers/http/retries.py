"""What is tried again, how often, and after how long: the only module that knows the retry library."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import tenacity

from cosd_providers.errors import ConnectError, RateLimitError, ServerError

__all__ = ["until_answered"]

_ATTEMPTS = 4
_FEW = 2  # attempts, where another one hardly helps
_LOADING_SECONDS = 120.0  # how long to wait for a server that loads its model
_LONGEST_WAIT = 30.0  # seconds between two attempts, whatever the server asks for

_BACKOFF = tenacity.wait_exponential(multiplier=0.25, max=8.0) + tenacity.wait_random(0.0, 0.25)

_T = TypeVar("_T")


async def until_answered(
    send: Callable[[], Awaitable[_T]],
    *,
    stale: Callable[[BaseException], bool],
    lasting: Callable[[BaseException], bool],
    again: Callable[[BaseException | None], None],
) -> _T:
    """What `send` gives, in the first attempt that succeeds; else the error of the last one.

    Args:
        send: one attempt.
        stale: whether an error most likely comes from a kept connection that the server had closed meanwhile;
            after the first attempt that is no reason to wait.
        lasting: whether an error will most likely be there again: it is tried once more, and no further.
        again: called with the error before each further attempt.
    """

    def pause(state: tenacity.RetryCallState) -> float:
        """Seconds before the next attempt: what the server asks for, else growing, with jitter."""
        error = _error(state)
        if state.attempt_number == 1 and error is not None and stale(error):
            return 0.0
        asked = getattr(error, "retry_after", None)
        if asked is not None:
            return min(float(asked), _LONGEST_WAIT)
        return min(_BACKOFF(state), 2.0) if _loading(error) else _BACKOFF(state)

    def enough(state: tenacity.RetryCallState) -> bool:
        error = _error(state)
        if _loading(error):
            return (state.seconds_since_start or 0.0) >= _LOADING_SECONDS
        few = error is not None and lasting(error)
        return state.attempt_number >= (_FEW if few else _ATTEMPTS)

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_worth_retrying),
        stop=enough,
        wait=pause,
        sleep=anyio.sleep,
        before_sleep=lambda state: again(_error(state)),
        reraise=True,
    )
    return await attempts(send)


def _worth_retrying(error: BaseException) -> bool:
    return isinstance(error, (ConnectError, RateLimitError, ServerError)) and error.retryable


def _loading(error: BaseException | None) -> bool:
    """Whether the server says so: its own message counts, not its URL."""
    return isinstance(error, ServerError) and error.status == 503 and "loading" in str(error.args[0]).lower()


def _error(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
