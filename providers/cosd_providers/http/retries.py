"""Retries: which errors are retried, how often, and after what pause. Only this module imports the retry library."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

import anyio
import tenacity

from cosd_providers.errors import ProviderError, RateLimitError, ServerError

_ATTEMPTS = 4
_LOADING_SECONDS = 120.0  # maximum wait for a server that is loading its model
_LONGEST_WAIT = 60.0  # maximum number of seconds between two attempts; limits per minute ask for up to a minute

_RETRYABLE = tenacity.retry_if_exception(lambda error: isinstance(error, ProviderError) and error.retryable)
_BACKOFF = tenacity.wait_exponential(multiplier=0.25, max=8.0) + tenacity.wait_random(0.0, 0.25)

_T = TypeVar("_T")
_END: Final = object()

_log = logging.getLogger("cosd_providers")


class RetriedFailures:
    """A record of the failures after which requests are being retried, so that a time limit does not hide them."""

    def __init__(self) -> None:
        self._found: dict[str, ProviderError] = {}  # by endpoint

    @property
    def last(self) -> ProviderError | None:
        """The last failure of an endpoint that has not answered since; None if there is none."""
        return next(reversed(self._found.values()), None)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the failures of the requests in this block, and of those in the tasks that it starts."""
        token = _records.set((*_records.get(), self))
        try:
            yield
        finally:
            _records.reset(token)

    def note(self, error: ProviderError) -> None:
        """Record the failure of an endpoint."""
        self.forget(error.endpoint)
        self._found[error.endpoint] = error

    def forget(self, endpoint: str) -> None:
        """Remove the failure of an endpoint."""
        self._found.pop(endpoint, None)


_records: ContextVar[tuple[RetriedFailures, ...]] = ContextVar("failures", default=())


def _note(error: ProviderError) -> None:
    for record in _records.get():
        record.note(error)


_waits: ContextVar[tuple[Callable[[ProviderError], float], ...]] = ContextVar("waits", default=())


@contextmanager
def longest_wait(seconds: Callable[[ProviderError], float]) -> Iterator[None]:
    """Limit the pauses that servers may ask for between two attempts, in this block and in the tasks that it starts.

    Args:
        seconds: function that returns the greatest number of seconds for an error. With 0, a server that limits its
            rate is not asked again at all.
    """
    token = _waits.set((*_waits.get(), seconds))
    try:
        yield
    finally:
        _waits.reset(token)


def overcome(endpoint: str) -> None:
    """Remove the failure of an endpoint from all records, because it answers again."""
    for record in _records.get():
        record.forget(endpoint)


async def until_answered(
    attempt: Callable[[int], Awaitable[_T]], again: Callable[[ProviderError], None] = lambda _: None, *, few: int = 2
) -> _T:
    """Make attempts until one succeeds, and return its result.

    Only a `ProviderError` that is `retryable` leads to a retry. If the first attempt fails with a `stale` error, the
    second follows without a pause. If the server asks for a wait that is longer than a minute, than `longest_wait`
    allows, or than the time that is left before a cancel scope's deadline, no retry is made.

    Args:
        attempt: function that makes one attempt. Its argument is the number of the attempt, counted from 1.
        again: function that is called with the error before each retry.
        few: total number of attempts if the error is `lasting`.

    Raises:
        ProviderError: the error of the last attempt.
    """
    try:
        return await attempt(1)  # usually enough: the retry library would take time and leave reference cycles
    except ProviderError as error:
        if not error.retryable:
            raise
        first = error
    failures = 0

    def enough(state: tenacity.RetryCallState) -> bool:
        nonlocal failures
        error = _error(state)
        if _asks_too_much(error):
            return True
        if _loading(error):
            return (state.seconds_since_start or 0.0) >= _LOADING_SECONDS
        failures += 1  # failures while the model is being loaded do not count
        return failures >= (few if error.lasting else _ATTEMPTS)

    def before_sleep(state: tenacity.RetryCallState) -> None:
        _note(_error(state))
        again(_error(state))

    attempts = tenacity.AsyncRetrying(
        retry=_RETRYABLE, stop=enough, wait=_pause, sleep=anyio.sleep, before_sleep=before_sleep, reraise=True
    )
    try:
        async for one in attempts:
            number = one.retry_state.attempt_number
            with one:
                if number == 1:
                    raise first
                answer = await attempt(number)
                overcome(first.endpoint)
                return answer
    except ProviderError as error:
        overcome(error.endpoint)  # the caller receives the failure itself
        raise
    raise AssertionError("attempts end only with a result or an error")


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


def _log_resumed(error: ProviderError) -> None:
    _log.info("%s: a stream is resumed after %s", error.endpoint, type(error).__name__)


def _pause(state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next attempt: as the server asks, or by exponential backoff with jitter."""
    error = _error(state)
    if state.attempt_number == 1 and error.stale:
        return 0.0
    if error.retry_after is not None:
        return error.retry_after
    return min(_BACKOFF(state), 2.0) if _loading(error) else _BACKOFF(state)


def _asks_too_much(error: ProviderError) -> bool:
    """Test whether the server asks for a longer wait than any retry may take, and then say so in the error."""
    wait, left = error.retry_after, anyio.current_effective_deadline() - anyio.current_time()
    longest = min([_LONGEST_WAIT, *(seconds(error) for seconds in _waits.get())])
    if wait is None:
        return not longest and isinstance(error, RateLimitError)
    if wait <= min(left, longest):
        return False
    limit = f"the {longest:g} s that a retry waits for" if wait > longest else "the time that is left"
    words = f"; the server asks to wait {wait:g} s, which is more than {limit}"
    error.args = (error.args[0].removesuffix(words) + words,)
    return True


def _loading(error: ProviderError) -> bool:
    """Test whether the server's message says that it is loading its model."""
    return isinstance(error, ServerError) and error.status == 503 and "loading" in str(error.args[0]).lower()


def _error(state: tenacity.RetryCallState) -> ProviderError:
    """Return the error of the last attempt, which is a `ProviderError` because only these are retried."""
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, ProviderError)
    return error
