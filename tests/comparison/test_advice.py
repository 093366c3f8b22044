"""The choice between fusing and one model alone: its rule by hand, and how often it errs where the truth is known."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import SettingError
from cosd_api.comparison.advice import LEVEL, Outcomes, choose, decided, parts, trial_of
from cosd_api.comparison.statistics import PairedCounts, mcnemar, paired_difference

WAYS = 30
QUESTIONS = 100


def table(draft: str, assistant: str, billed: dict[str, float] | None = None, **ways: str) -> Outcomes:
    """Outcomes as strings of 1 and 0, a character for each question."""

    def outcomes(text: str) -> dict[str, bool]:
        return {f"q{at}": one == "1" for at, one in enumerate(text) if one != "-"}

    alone = {"draft": outcomes(draft), "assistant": outcomes(assistant)}
    return Outcomes(alone, {name: outcomes(way) for name, way in ways.items()}, billed or {})


def test_the_most_right_answers_are_chosen_then_the_least_billed() -> None:
    assert choose(table("1100", "0110", a="1110", b="1111")) == "b"
    assert choose(table("1100", "0110", a="1110", b="0111")) == "a"
    assert choose(table("1100", "0110", {"a": 9, "b": 2}, a="1110", b="0111")) == "b"
    assert choose(table("1100", "0110", a="1100", b="0011")) is None


def test_a_question_that_failed_is_wrong_and_one_that_a_model_failed_at_is_left_out() -> None:
    found = table("11-0", "0110", a="1-11")
    assert found.questions == ["q0", "q1", "q3"]
    assert found.counts("a", "draft") == PairedCounts(both=1, won=1, lost=1, neither=0)


def test_a_way_has_to_beat_both_models() -> None:
    found = trial_of(table("0" * 12, "1" * 6 + "0" * 6, a="1" * 12), "a")
    assert (found.against, found.counts) == ("assistant", PairedCounts(both=6, won=6, lost=0, neither=0))
    assert found.p == mcnemar(found.counts) == 2 / 2**6 and found.fuse
    assert found.gain == paired_difference(found.counts)
    assert not trial_of(table("0" * 12, "1" * 6 + "0" * 6, a="1" * 11 + "0"), "a").fuse
    assert not trial_of(table("1" * 12, "0" * 12, a="0" * 12), "a").fuse  # significantly worse


def test_questions_are_cut_by_their_hashes() -> None:
    keys = [f"q{at}" for at in range(50)]
    first, second = parts(keys)
    assert (len(first), len(second)) == (20, 30) and {*first, *second} == {*keys}
    assert parts(reversed(keys)) == (first, second)
    with pytest.raises(SettingError, match=re.escape("advice takes at least 20 questions, better a hundred, not 19")):
        parts(keys[:19])
    with pytest.raises(SettingError, match=re.escape("choosing must be a number between 0.1 and 0.9, not 1")):
        parts(keys, 1)


@given(st.data())
def test_the_test_sees_none_of_the_questions_that_chose(data: st.DataObject) -> None:
    """Outcomes of the second part change the test, never the choice."""
    number = st.integers(0, 2**30 - 1)
    bits = [f"{data.draw(number):030b}" for _ in range(5)]
    found = table(bits[0], bits[1], a=bits[2], b=bits[3], c=bits[4])
    first, second = parts(found.questions)
    flipped = {name: {key: one != (key in second) for key, one in right.items()} for name, right in found.ways.items()}
    assert decided(found).way == decided(Outcomes(found.alone, flipped)).way == choose(found.only(first))


# How often it errs.


def drawn(rng: random.Random, draft: float, assistant: float, way: Callable[[bool, bool], float]) -> Outcomes:
    """Independent questions, and ways to fuse them that are right with a probability by what the models have right."""
    keys = [f"{rng.random()}" for _ in range(QUESTIONS)]
    one = {key: rng.random() < draft for key in keys}
    other = {key: rng.random() < assistant for key in keys}
    ways = {f"w{at}": {key: rng.random() < way(one[key], other[key]) for key in keys} for at in range(WAYS)}
    return Outcomes({"draft": one, "assistant": other}, ways)


def advised(runs: int, seed: int, draft: float, assistant: float, way: Callable[[bool, bool], float]) -> float:
    """The share of runs in which it says to fuse."""
    rng = random.Random(seed)
    found = [decided(drawn(rng, draft, assistant, way)).trial for _ in range(runs)]
    return sum(one is not None and one.fuse for one in found) / runs


@pytest.mark.extended
@pytest.mark.parametrize(
    ("draft", "assistant", "way"),
    [
        (0.5, 0.5, lambda one, other: (one + other) / 2),  # takes the one or the other, blindly: as good as each
        (0.7, 0.3, lambda one, other: one),  # the better model's answers
        (0.7, 0.3, lambda one, other: (one + other) / 2),  # a dominated pair
        (0.5, 0.3, lambda one, other: 0.5),  # as often right as the better model, on other questions
    ],
    ids=["blind", "a copy", "dominated", "at the edge"],
)
def test_pairs_that_must_not_be_fused_are_not(
    draft: float, assistant: float, way: Callable[[bool, bool], float]
) -> None:
    runs = 300
    # At most LEVEL / 2 in the long run; three standard deviations of 300 runs are 0.027.
    assert advised(runs, 1, draft, assistant, way) <= LEVEL / 2 + 0.027


@pytest.mark.extended
def test_pairs_that_complement_each_other_are_fused() -> None:
    assert advised(100, 2, 0.5, 0.5, lambda one, other: 0.95 if one or other else 0.05) >= 0.8


@pytest.mark.extended
def test_the_gain_is_unbiased_although_the_best_of_many_was_chosen() -> None:
    """The chosen way of thirty equal ones seems to gain on the questions that chose it, and not on the others."""
    rng = random.Random(3)
    inside: list[float] = []
    outside: list[float] = []
    for _ in range(150):
        found = drawn(rng, 0.5, 0.5, lambda one, other: 0.5)
        first, second = parts(found.questions)
        if (way := choose(found.only(first))) is not None:
            inside.append(found.only(first).counts(way, "draft").difference)
            outside.append(found.only(second).counts(way, "draft").difference)
    assert sum(inside) / len(inside) > 0.1
    assert abs(sum(outside) / len(outside)) < 0.03
