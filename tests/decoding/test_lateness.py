"""Verdicts heard late, and tokens drafted in vain, on a machine that is short of processors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cosd_api.decoding.lateness import PRECISION, TURNS, Lateness
from starved import Client, outcome

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


@pytest.mark.extended
def test_a_draft_that_continues_from_text_is_not_interrupted() -> None:
    """Its text could be read as other tokens than it wrote: the answer would depend on time."""
    client = Client(share=0.15, takes_ids=False)
    found = outcome(client, fusions=4, tokens=48)
    assert all(one.draft_requests == one.iterations for one in found.results)
