"""Retries, and answers that are resumed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import (
    AuthenticationError,
    BudgetError,
    ProviderError,
    ProviderTimeoutError,
    ResponseError,
    ServerError,
)
from cosd_providers.http.retries import resumed, until_answered
from fakes.breaking import waiting

BROKEN = "the connection broke"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return waiting(monkeypatch)


def broken() -> ResponseError:
    return ResponseError(BROKEN, endpoint="http://gpu:8080", retryable=True)


class Answer:
    """The numbers from 0 up to an end, in pieces: each attempt continues after those given, and may break off.

    Attributes:
        given: what was given so far.
        attempts: the number of each attempt.
        open: how many answers were not closed.
    """

    def __init__(self, end: int, pieces: list[int], error: ProviderError | None = None) -> None:
        self.given: list[int] = []
        self.attempts: list[int] = []
        self.open = 0
        self._end = end
        self._pieces: Iterator[int] = iter(pieces)
        self._error = error

    async def begin(self, attempt: int) -> AsyncGenerator[int, None]:
        self.attempts.append(attempt)
        piece = next(self._pieces, self._end)
        self.open += 1
        try:
            for number in range(len(self.given), self._end):
                if not piece:
                    raise self._error or broken()
                piece -= 1
                self.given.append(number)
                yield number
        finally:
            self.open -= 1


@given(st.integers(0, 12), st.lists(st.integers(0, 3), max_size=12))
async def test_an_answer_that_breaks_off_is_whole_in_the_end_or_it_is_said_how_often(
    end: int, pieces: list[int]
) -> None:
    answer, found, failed = Answer(end, pieces), list[int](), ""
    with pytest.MonkeyPatch.context() as patch:
        waited = waiting(patch)
        try:
            async with aclosing(resumed(answer.begin)) as numbers:
                async for number in numbers:
                    found.append(number)
        except ResponseError as error:
            failed = str(error)
    assert (len(found) < end) == bool(failed)
    if failed:
        assert failed == f"http://gpu:8080: {BROKEN} (tried 4 times)"
        assert answer.attempts[-1] == 4
    assert found == answer.given == [*range(len(found))]
    assert not answer.open
    assert len(waited) == len(answer.attempts) - 1
    assert max(answer.attempts) <= 4
    assert max(waited, default=0) <= 8.25


async def test_each_item_starts_the_count_again(pauses: list[float]) -> None:
    answer = Answer(6, [0, 0, 0, 1, 0, 0, 1, 2])
    assert [number async for number in resumed(answer.begin)] == [*range(6)]
    assert answer.attempts == [1, 2, 3, 4, 2, 3, 4, 2, 2]


async def test_a_time_out_is_tried_once_more(pauses: list[float]) -> None:
    error = ProviderTimeoutError("nothing more")
    error.lasting = True
    answer = Answer(3, [1, 0, 0], error)
    with pytest.raises(ProviderTimeoutError, match=r"nothing more \(tried 2 times\)"):
        [number async for number in resumed(answer.begin)]
    assert answer.attempts == [1, 2]


@pytest.mark.parametrize("error", [AuthenticationError("no"), ResponseError("not JSON"), BudgetError("no more")])
async def test_what_is_not_worth_it_is_raised_at_once(error: ProviderError, pauses: list[float]) -> None:
    answer = Answer(3, [1], error)
    with pytest.raises(type(error)) as caught:
        [number async for number in resumed(answer.begin)]
    assert caught.value is error
    assert "tried" not in str(error)
    assert (answer.attempts, pauses) == ([1], [])


async def test_what_is_no_providers_error_is_not_tried_again(pauses: list[float]) -> None:
    async def ask(attempt: int) -> None:
        raise KeyError(attempt)

    with pytest.raises(KeyError, match="1"):
        await until_answered(ask)
    assert pauses == []


async def test_leaving_it_closes_the_answer() -> None:
    answer = Answer(9, [])
    async with aclosing(resumed(answer.begin)) as numbers:
        assert await anext(numbers) == 0
        assert answer.open == 1
    assert answer.open == 0


async def test_a_server_that_loads_is_waited_for_and_then_not(pauses: list[float]) -> None:
    tries: list[int] = []

    async def ask(attempt: int) -> int:
        tries.append(attempt)
        if len(tries) < 30:
            raise ServerError("503: Loading model", status=503)
        return attempt

    assert await until_answered(ask) == 30
    assert max(pauses) <= 2


async def test_it_is_logged_without_a_word_of_the_answer(pauses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cosd_providers")
    answer = Answer(3, [1])
    assert [number async for number in resumed(answer.begin)] == [0, 1, 2]
    assert caplog.messages == ["http://gpu:8080: a stream is resumed after ResponseError"]
