"""Watches: the answer is the one of single questions, under every schedule of events; and when they open and close."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import given, target
from hypothesis import strategies as st

import id_schedules
from cosd_api.decoding.commands import DRAFT
from decoding.test_same_ids import HEDGES, PACES, check
from drawn import decoder_examples
from id_models import Task, tasks
from id_schedules import IdLimits
from scheduled import choosers
from schedules import Choose

WATCHED = st.sampled_from((frozenset({0, 1, 2}), frozenset({0}), frozenset({1, 2})))


def watching(task: Task, watched: frozenset[int]) -> frozenset[int]:
    """The assistants of a task among these."""
    return watched & {*range(len(task.assistants))}


@st.composite
def breaking(draw: st.DrawFn) -> Callable[[int, int], bool]:
    """Places, by bytes, at which the watch of an assistant breaks."""
    salt, share = draw(st.integers(0, 2**16)), draw(st.sampled_from((1, 2, 4)))
    return lambda assistant, at: zlib.crc32(repr((salt, assistant, at)).encode()) % share == 0


@decoder_examples
@given(tasks(), choosers(), WATCHED, st.booleans(), st.booleans(), HEDGES, PACES)
def test_equal_under_every_schedule(
    task: Task, choose: Choose, watched: frozenset[int], late: bool, skip: bool, hedge: int, pace: dict[str, Any]
) -> None:
    given = pace | {"watched": watching(task, watched), "hedge": 0 if "draft_length" in pace else hedge}
    outcome = id_schedules.run(task, choose, late=late, skip=skip, **given)
    check(outcome, task, skip=skip)


@decoder_examples
@given(tasks(), choosers(), WATCHED, HEDGES, st.randoms(use_true_random=False))
def test_equal_however_late_it_is_heard(
    task: Task, choose: Choose, watched: frozenset[int], hedge: int, chance: random.Random
) -> None:
    given: Any = {"hedge": hedge, "watched": watching(task, watched)}
    check(id_schedules.run(task, choose, lately=lambda: chance.random() < 0.5, **given), task)


@decoder_examples
@given(tasks(), choosers(), WATCHED, breaking(), st.sets(st.integers(0, 2)), HEDGES, PACES)
def test_watches_that_fail_change_nothing(
    task: Task,
    choose: Choose,
    watched: frozenset[int],
    breaks: Callable[[int, int], bool],
    failing: set[int],
    hedge: int,
    pace: dict[str, Any],
) -> None:
    limits = IdLimits(early=failing.__contains__, watch=breaks)
    given = pace | {"watched": watching(task, watched), "hedge": 0 if "draft_length" in pace else hedge}
    check(id_schedules.run(task, choose, limits=limits, **given), task)


@decoder_examples
@given(tasks(), choosers(), choosers(), WATCHED, breaking(), st.sets(st.integers(0, 2)), PACES)
def test_an_assistant_is_lost_where_single_questions_lose_it(
    task: Task,
    one: Choose,
    other: Choose,
    watched: frozenset[int],
    odd: Callable[[int, int], bool],
    failing: set[int],
    pace: dict[str, Any],
) -> None:
    limits = IdLimits(
        fails=lambda assistant, at, _: assistant in failing and odd(assistant, at), early=failing.__contains__
    )
    given: Any = {"limits": limits, "survives": lambda _: True}
    outcomes = [
        id_schedules.run(task, one, **given),
        id_schedules.run(task, other, **given, **pace, watched=watching(task, watched)),
    ]
    told = [
        [(one.token.id, one.token.data, one.source, one.verified) for one in outcome.decoder.response.tokens]
        for outcome in outcomes
    ]
    assert told[0] == told[1]
    lost = [{at: loss.token for at, loss in one.decoder.lost.items()} for one in outcomes]
    assert lost[0] == lost[1]


@decoder_examples
@given(tasks(same=True), choosers(), WATCHED, st.booleans(), PACES)
def test_a_model_fused_with_itself_is_watched_once(
    task: Task, choose: Choose, watched: frozenset[int], skip: bool, pace: dict[str, Any]
) -> None:
    outcome = id_schedules.run(task, choose, skip=skip, watched=watching(task, watched), **pace)
    check(outcome, task, skip=skip)
    assert outcome.decoder.report().replacements == outcome.decoder.report().ties == 0
    assert not any(ask.assistant == DRAFT or ask.assistant in watched for ask in outcome.asks)
    target(float(len(outcome.emitted)))
