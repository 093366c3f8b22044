"""Retries: which errors are retried, how often, and after what pause. Only this module imports the retry library."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

import anyio
import tenacity

from cosd_providers.errors import ProviderError, ServerError

__all__ = ["resumed", "until_answered"]

_ATTEMPTS = 4
_LOADING_SECONDS = 120.0  # maximum wait for a server that is loading its model
_LONGEST_WAIT = 30.0  # maximum number of seconds between two attempts, even if the server asks for more

_BACKOFF = tenacity.wait_exponential(multiplier=0.25, max=8.0) + tenacity.wait_random(0.0, 0.25)

_T = TypeVar("_T")
_END: Final = object()

_log = logging.getLogger("cosd_providers")


async def until_answered(
    attempt: Callable[[int], Awaitable[_T]],
    again: Callable[[BaseException | None], None] = lambda _: None,
    *,
    few: int = 2,
) -> _T:
    """Make attempts until one succeeds, and return its result.

    Only a `ProviderError` that is `retryable` leads to a retry. If the first attempt fails with a `stale` error, the
    second follows without a pause.

    Args:
        attempt: function that makes one attempt. Its argument is the number of the attempt, counted from 1.
        again: function that is called with the error before each retry.
        few: total number of attempts if the error is `lasting`.

    Raises:
        ProviderError: the error of the last attempt.
    """
    try:
        return await attempt(1)  # usually enough, so the retry library, which costs time, is not used yet
    except ProviderError as error:
        if not error.retryable:
            raise
        first: ProviderError | None = error
    number, failures = 1, 0

    async def send() -> _T:
        nonlocal number, first
        if first is not None:
            error, first = first, None
            raise error
        number += 1
        return await attempt(number)

    def pause(state: tenacity.RetryCallState) -> float:
        """Return the seconds before the next attempt: as the server asks, or by exponential backoff with jitter."""
        error = _error(state)
        if state.attempt_number == 1 and isinstance(error, ProviderError) and error.stale:
            return 0.0
        if isinstance(error, ProviderError) and error.retry_after is not None:
            return min(error.retry_after, _LONGEST_WAIT)
        return min(_BACKOFF(state), 2.0) if _loading(error) else _BACKOFF(state)

    def enough(state: tenacity.RetryCallState) -> bool:
        nonlocal failures
        error = _error(state)
        if _loading(error):
            return (state.seconds_since_start or 0.0) >= _LOADING_SECONDS
        failures += 1  # failures while the model is being loaded do not count
        return failures >= (few if isinstance(error, ProviderError) and error.lasting else _ATTEMPTS)

    attempts = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, ProviderError) and error.retryable),
        stop=enough,
        wait=pause,
        sleep=anyio.sleep,
        before_sleep=lambda state: again(_error(state)),
        reraise=True,
    )
    return await attempts(send)


async def resumed(begin: Callable[[int], AsyncGenerator[_T]]) -> AsyncGenerator[_T]:
    """Yield the items of an answer. If the answer breaks off, request the remaining items.

    Args:
        begin: function that requests the remaining items. It must itself keep track of the items that it has yielded.
            Its argument is the number of the attempt, counted from 1; counting starts again after each item.

    Raises:
        ProviderError: no further item arrived. The message contains the number of attempts.
    """
    answer: AsyncGenerator[_T] | None = None
    broken: ProviderError | None = None
    last = 0

    async def step(number: int) -> object:
        nonlocal answer, broken, last
        last = number
        if broken is not None:  # the stream that broke counts as the first attempt
            error, broken, answer = broken, None, None
            raise error
        if answer is None:
            answer = begin(number)
        try:
            return await anext(answer, _END)
        except ProviderError:
            answer = None  # because the error has ended the generator
            raise

    try:
        while (item := await until_answered(step, _log_resumed)) is not _END:
            yield item  # type: ignore[misc]  # an item of `begin`
            assert answer is not None
            try:
                async for item in answer:
                    yield item
            except ProviderError as error:
                broken = error
            else:
                return
    except ProviderError as error:
        if last > 1 and error.retryable:
            error.args = (f"{error.args[0]} (tried {last} times)",)
        raise
    finally:
        if answer is not None:
            await answer.aclose()


def _log_resumed(error: BaseException | None) -> None:
    where = error.endpoint if isinstance(error, ProviderError) else ""
    _log.info("%s: a stream is resumed after %s", where, type(error).__name__)


def _loading(error: BaseException | None) -> bool:
    """Test whether the server's message says that it is loading its model."""
    return isinstance(error, ServerError) and error.status == 503 and "loading" in str(error.args[0]).lower()


def _error(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
