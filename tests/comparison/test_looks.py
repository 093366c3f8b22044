"""Looks at outcomes: the plan, the error that is spent, the ways that are dropped, and the verdict."""

from __future__ import annotations

import math
import random
import re

import pytest

from cosd_api import SettingError
from cosd_api.comparison.looks import (
    AUDITED,
    KEPT,
    SPENDING,
    LookLine,
    Outcomes,
    SequentialTest,
    in_order,
    is_audited,
    looked_at,
    room,
    schedule,
)
from cosd_api.comparison.sign_flips import FLIPS
from cosd_api.comparison.statistics import PairedCounts, paired_difference


def table(draft: str, assistant: str, billed: dict[str, float] | None = None, **ways: str) -> Outcomes:
    """Outcomes as strings of 1 and 0, a character for each question; - where it failed."""

    def outcomes(text: str) -> dict[str, bool]:
        return {f"q{at}": one == "1" for at, one in enumerate(text) if one != "-"}

    alone = {"draft": outcomes(draft), "assistant": outcomes(assistant)}
    return Outcomes(alone, {name: outcomes(way) for name, way in ways.items()}, billed or {})


def once(outcomes: Outcomes, spend: float = 0.04, flips: int = FLIPS) -> SequentialTest:
    """One look at all."""
    trial = SequentialTest(flips=flips)
    trial.look(outcomes, outcomes.questions, [*outcomes.ways], spend)
    return trial


def lines(*numbers: int) -> list[LookLine]:
    """Looks of earlier runs, with new questions in each."""
    spends = (*SPENDING, KEPT / 2, KEPT / 4)
    return [
        LookLine(questions=tuple(f"{at} {one}" for one in range(number)), ways=("a",), spent=spends[at], of=number)
        for at, number in enumerate(numbers)
    ]


def test_questions_come_by_their_hashes_and_those_that_were_seen_first() -> None:
    keys = [f"q{at}" for at in range(30)]
    order = in_order(keys)
    assert in_order(reversed(keys)) == order != keys and {*order} == {*keys}
    assert in_order([*keys, *keys]) == order
    seen = order[10:20]
    assert in_order(keys, [*seen, "another"]) == [*seen, *order[:10], *order[20:]]
    with pytest.raises(
        SettingError, match=re.escape("advice needs at least 20 questions, preferably a hundred, not 19")
    ):
        in_order(keys[:19])


def test_the_error_is_spent_over_looks_and_files_that_grow() -> None:
    assert schedule(200) == [(50, 0.003), (100, 0.007), (200, 0.03)]
    assert schedule(200, looks="end") == [(200, 0.04)]
    assert [one for one, _ in schedule(200, lines(50))] == [100, 200]
    assert [one for _, one in schedule(200, lines(50))] == pytest.approx([0.007, 0.03])
    assert schedule(200, lines(50, 50, 100)) == schedule(299, lines(50, 50, 100)) == []
    ((number, spend),) = schedule(300, lines(50, 50, 100))
    assert number == 300 and spend == pytest.approx(0.005)
    ((number, spend),) = schedule(500, lines(50, 50, 100, 100))
    assert number == 500 and spend == pytest.approx(0.0025)
    # A file that has grown before all looks were made: a look that has no new questions leaves its share to the next.
    ((number, spend),) = schedule(160, lines(100))
    assert number == 160 and spend == pytest.approx(0.037)
    with pytest.raises(SettingError, match=re.escape('looks must be "auto" or "end", not \'never\'')):
        schedule(200, looks="never")  # type: ignore[arg-type]


def test_a_tie_with_the_bound_is_not_above_it() -> None:
    """Where all that differ are won, the flips that keep all signs tie: one in 256 with eight, one in 32 with five."""
    assert once(table("0" * 8 + "1" * 12, "0" * 20, a="1" * 20)).seen[0].fuse == "a"
    assert once(table("0" * 5 + "1" * 15, "0" * 20, a="1" * 20), 0.03).seen[0].fuse is None


def test_a_way_has_to_beat_each_model() -> None:
    assert once(table("0" * 20, "0" * 10 + "1" * 10, a="1" * 20)).fused is not None
    assert once(table("0" * 20, "0" * 1 + "1" * 19, a="1" * 20)).fused is None
    assert once(table("1" * 20, "0" * 20, a="0" * 20)).fused is None


def test_questions_of_one_group_are_one_piece_of_evidence() -> None:
    found = table("0" * 12 + "1" * 12, "0" * 24, a="1" * 24)
    assert once(found).verdict() == "fuse"
    groups = {f"q{at}": f"fact {at // 6}" for at in range(24)}
    grouped = once(Outcomes(found.alone, found.ways, {}, groups))
    assert grouped.verdict() == "undecided"  # two groups of four
    (way,) = grouped.last.values()
    assert (way.groups, way.questions, way.total) == (4, 24, 12)
    counts = found.counts("a", "draft", found.questions)
    assert way.gain(counts).low <= 0 and way.gain(counts).high >= paired_difference(counts).high


def test_a_question_that_failed_is_wrong_and_one_that_a_model_failed_at_is_left_out() -> None:
    found = table("11-0", "0110", a="1-11")
    assert found.questions == ["q0", "q1", "q3"] == found.of(["q0", "q1", "q2", "q3"])
    assert found.counts("a", "draft", found.questions) == PairedCounts(both=1, won=1, lost=1, neither=0)


def test_of_ways_within_a_standard_error_the_cheapest_is_taken() -> None:
    won = {"a": "1" * 40, "b": "1" * 39 + "0", "c": "1" * 30 + "0" * 10}
    found = table("0" * 40, "0" * 40, {"a": 9, "b": 5, "c": 1}, **won)
    assert once(found).seen[0].fuse == "b"


def test_after_fifty_questions_the_better_half_continues_with_ties() -> None:
    rng = random.Random(1)
    model = "".join(rng.choice("01") for _ in range(60))
    worse = {f"w{at}": "0" * (10 + at) + model[10 + at :] for at in range(6)}
    seen = once(table(model, model, None, a=model, b=model, **worse), 0.003).seen[0]
    assert {"a", "b"} <= {*seen.kept} and len(seen.kept) >= 4 and seen.dropped
    few = once(table(model[:49], "0" * 49, None, **{name: one[:49] for name, one in worse.items()}), 0.003).seen[0]
    assert few.kept == tuple(worse) and not few.dropped
    same = once(table(model, model, a=model, b=model, c=model), 0.003).seen[0]
    assert same.kept == ("a", "b", "c")


def test_ways_that_were_ever_tried_raise_the_bound() -> None:
    found = table("0" * 9 + "1" * 31, "0" * 40, a="1" * 40)
    few, many = SequentialTest(), SequentialTest(tried=[f"w{at}" for at in range(200)])
    bounds = [one.look(found, found.questions, ["a"], 0.04).ways["a"].bounds["draft"] for one in (few, many)]
    assert bounds[0] < bounds[1] and bounds[1] > 3
    again = SequentialTest(tried=[f"w{at}" for at in range(200)]).look(found, found.questions, ["a"], 0.04)
    assert again.ways["a"].bounds["draft"] == bounds[1]  # the same in a resumed run


def test_a_gain_is_excluded_where_none_is_seen_and_enough_was_asked() -> None:
    model = "01" * 60
    assert once(table(model, "0" * 120, a=model)).verdict(0.05) == "alone"
    assert once(table(model[:40], "0" * 40, a=model[:40])).verdict(0.05) == "undecided"
    (way,) = once(table(model[:40], "0" * 40, a=model[:40])).last.values()
    assert way.more(0.05) == 11  # 2.5 / 51 is below 0.05
    half = "10" * 30 + "01" * 30
    assert once(table(model, "0" * 120, a=half)).verdict(0.05) == "undecided"


def test_the_number_still_needed_is_that_of_eighty_percent_power() -> None:
    found = table("01" * 50, "0" * 100, a="10" * 5 + "01" * 45)
    (way,) = once(found).last.values()
    limit = way.bounds["draft"]
    assert way.more(0.05) == math.ceil((limit + 0.8416) ** 2 * (0.1 - 0.0025) / 0.0025) - 100
    assert SequentialTest(flips=9).look(found, found.questions, ["a"], 0.04).ways["a"].more(0.05) is None


def test_room_is_where_texts_differ_and_the_better_model_is_wrong() -> None:
    found = table("1" * 90 + "0" * 10, "0" * 100)
    keys = found.questions
    assert room(found, keys, []).value == 0.1 and room(found, keys, keys[:95]).value == 0.05
    assert room(found, keys, keys).value == 0 < room(found, keys, keys).high < 0.06


def test_one_in_twenty_equal_texts_is_audited() -> None:
    assert sum(is_audited(f"q{at}") for at in range(2000)) / 2000 == pytest.approx(AUDITED, abs=0.015)


def test_a_plan_ends_where_it_is_decided() -> None:
    found = table("0" * 50 + "1" * 50, "0" * 100, a="1" * 100, b="1" * 100)
    trial = SequentialTest()
    assert looked_at(found, in_order(found.questions), schedule(100), trial) == "fuse"
    assert len(trial.seen) == 1 and trial.seen[0].counted == 25
