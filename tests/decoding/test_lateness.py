"""Verdicts heard late, and tokens drafted in vain, on a machine that is short of processors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cosd_api.decoding.lateness import LATELY, PRECISION, TURNS, Lateness
from toys.starved import Client, outcome

STARVED = Client(share=0.15)
WOKEN = Lateness.woken


@pytest.fixture(scope="module", autouse=True)
def loops_may_be_late() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lateness, "woken", WOKEN)
        yield


def test_late_is_a_turn_that_a_verdict_takes_too_few_of() -> None:
    lateness = Lateness()
    lateness.woken(1.0)
    assert not lateness.late  # no verdict is known
    lateness.heard(31.0)
    assert lateness.late
    lateness.heard(33.0)
    assert not lateness.late  # the mean counts
    for _ in range(8):
        lateness.woken(PRECISION)  # as late as timers are
    lateness.heard(0.0001)
    assert not lateness.late
    lateness.woken(8 * (33.0 / TURNS))
    assert lateness.late


def test_verdicts_are_known_to_come_in_time_for_a_while_and_at_a_like_load() -> None:
    lateness = Lateness()
    lateness.answers = 3
    lateness.heard(1.0, 100.0)
    assert not lateness.in_time(100.0)  # no turn is known
    lateness.woken(PRECISION)
    assert lateness.in_time(100.0)
    assert lateness.in_time(100.0 + LATELY)
    assert not lateness.in_time(101.0 + LATELY)
    lateness.answers = 6
    assert lateness.in_time(100.0)
    lateness.answers = 7
    assert not lateness.in_time(100.0)
    lateness.heard(1.0, 101.0)
    assert not lateness.in_time(101.0)  # the least load of the last verdicts counts
    lateness.answers = 1
    lateness.woken(1.0)
    assert lateness.late
    assert not lateness.in_time(101.0)


def test_only_first_answers_take_more_requests_on_an_idle_machine() -> None:
    """Of later ones it is known that verdicts come in time."""

    def more(answers: int) -> int:
        both = [outcome(Client(), fusions=8, tokens=48, answers=answers, **bound) for bound in ({}, {"max_ahead": 999})]
        after, before = (sum(one.draft_requests for one in found.results) for found in both)
        return after - before

    assert more(1) >= 3
    assert more(3) < 2 * more(1)


def test_nothing_changes_on_an_idle_machine() -> None:
    before, after = (outcome(Client(), fusions=1, tokens=48, **bound) for bound in ({"max_ahead": 999}, {}))
    assert after.seconds <= 1.02 * before.seconds
    assert after.results[0].text == before.results[0].text


@pytest.mark.extended
def test_little_is_drafted_in_vain_on_a_starved_one() -> None:
    before, after = (outcome(STARVED, fusions=8, tokens=96, **bound) for bound in ({"max_ahead": 999}, {}))
    assert [one.text for one in after.results] == [one.text for one in before.results]
    assert before.waste > 4
    assert after.waste < 1.6
    assert after.seconds < 0.6 * before.seconds


def test_an_answer_alone_says_nothing_of_many_at_once() -> None:
    """The first is in time on a machine that is short of processors for eight."""
    alone, none = (outcome(STARVED, fusions=8, tokens=48, first=first) for first in (1, 0))
    assert alone.waste < 1.1 * none.waste < 2


@pytest.mark.extended
def test_a_draft_that_continues_from_text_is_not_interrupted() -> None:
    """Its text could be read as other tokens than it wrote: the answer would depend on time."""
    client = Client(share=0.15, takes_ids=False)
    found = outcome(client, fusions=4, tokens=48)
    assert all(one.draft_requests == one.iterations for one in found.results)
