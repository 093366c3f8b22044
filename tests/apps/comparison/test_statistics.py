"""Statistics, against textbook values, enumeration of every outcome, and definitions written down naively."""

from __future__ import annotations

import math
import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api.apps.comparison.statistics import (
    FLIPS,
    Estimated,
    Joint,
    Outcomes,
    PairedCounts,
    SignFlips,
    bound,
    squares_of,
    wilson,
)


def share(right: int, total: int) -> Estimated:
    """The interval of independent trials."""
    return wilson([(1, 1)] * right + [(0, 1)] * (total - right))


def ends(one: Estimated) -> tuple[float, float]:
    return one.low, one.high


# Shares.


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [  # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_in_the_table(right: int, total: int, low: float, high: float) -> None:
    found = share(right, total)
    assert found.value == right / total
    assert ends(found) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 300), st.integers(1, 300))
def test_wilson_solves_its_equation(right: int, total: int) -> None:
    right = min(right, total)
    found = share(right, total)
    assert 0 <= found.low <= found.value <= found.high <= 1
    for end in ends(found):
        if 0 < end < 1:
            assert abs(found.value - end) == pytest.approx(1.95996398 * math.sqrt(end * (1 - end) / total), rel=1e-6)


def test_wilson_covers_the_true_share_about_as_often_as_it_says() -> None:
    """Exactly, by every outcome, as in figure 5 of Brown, Cai and DasGupta: near 95 % in the mean over shares."""
    total = 40
    intervals = [share(right, total) for right in range(total + 1)]
    coverages = [
        sum(
            comb(total, right) * share**right * (1 - share) ** (total - right)
            for right, found in enumerate(intervals)
            if found.low <= share <= found.high
        )
        for share in [at / 200 for at in range(1, 200)]
    ]
    assert min(coverages) > 0.83  # close to 0 and 1 every such interval is uneven
    assert sum(coverages) / len(coverages) == pytest.approx(0.95, abs=0.01)


def test_no_trials_tell_nothing() -> None:
    found = wilson([])
    assert math.isnan(found.value) and ends(found) == (0.0, 1.0)


def test_dependent_trials_count_as_fewer() -> None:
    found, single = wilson([(4, 4), (0, 4), (4, 4), (0, 4)]), share(8, 16)
    assert found.value == single.value and found.low < share(2, 4).low < single.low
    assert ends(wilson([(8, 8)])) == ends(share(1, 1))
    mixed = wilson([(2, 4), (2, 4), (2, 4), (2, 4)])
    assert mixed == share(8, 16)  # groups that are more alike than chance makes them tell no more than single trials


# Sign flips.


def naive(sums: list[int], signs: list[int]) -> float:
    squares = sum(one * one for one in sums)
    return sum(one * sign for one, sign in zip(sums, signs, strict=True)) / math.sqrt(squares) if squares else 0.0


@given(st.lists(st.integers(-9, 9), min_size=7, max_size=7))
def test_statistics_are_those_of_the_definition(sums: list[int]) -> None:
    keys = [f"q{at}" for at in range(7)]
    flips = SignFlips(keys)
    units = [flips.statistics({key: 1}) for key in keys]  # the signs of each group
    expected = [naive(sums, [int(unit[at]) for unit in units]) for at in range(FLIPS)]
    assert flips.statistics(dict(zip(keys, sums, strict=True))) == pytest.approx(expected)


def test_signs_are_fair_independent_and_a_matter_of_the_group_alone() -> None:
    keys = [f"q{at}" for at in range(40)]
    sums = dict.fromkeys(keys, 1)
    found = SignFlips([*keys, *keys]).statistics(sums)
    assert len(found) == FLIPS and found.mean() == pytest.approx(0, abs=4 / math.sqrt(FLIPS))
    assert found.var() == pytest.approx(1, abs=4 * math.sqrt(2 / FLIPS))
    few = dict.fromkeys(keys[:20], 1)
    assert SignFlips(keys[:20]).statistics(few) == pytest.approx(SignFlips(keys).statistics(few))
    assert squares_of(few) == 20 and SignFlips([]).statistics({}).tolist() == [0.0] * FLIPS


def test_too_few_flips_for_a_level_exceed_nothing() -> None:
    assert bound([1.0] * 19, 0.04) == math.inf and bound([1.0] * 19, 0.05) == 1.0


# Differences that hold together.


def outcomes(right: dict[str, str], **more: dict[str, str] | dict[str, float] | dict[str, set[str]]) -> Outcomes:
    """Outcomes written as digits, a question each; a dot has failed. `a` and `b` are the models."""
    several = {name: {str(at): one == "1" for at, one in enumerate(of) if one != "."} for name, of in right.items()}
    failed = {name: {str(at) for at, one in enumerate(of) if one == "."} for name, of in right.items()}
    questions = [str(at) for at in range(max(map(len, right.values())))]
    return Outcomes(("a", "b"), questions, several, failed, **more)  # type: ignore[arg-type]


def test_a_difference_by_hand() -> None:
    joint = Joint(outcomes({"a": "0" * 8, "b": "0" * 8, "way": "1" * 8}), ["way"])
    found = joint.difference("way", "a")
    assert found.counts == PairedCounts(0, 8, 0, 0) and found.bounded is None
    assert found.p == pytest.approx(2 / 2**8, abs=0.006)  # all signs are equal in two of 256 flips
    assert found.interval is not None and found.interval.value == 1 and 0 < found.interval.low < 0.5
    turned = joint.difference("a", "b")
    assert turned.p == 1 and turned.interval == Estimated(0, -turned.interval.high, turned.interval.high)  # type: ignore[union-attr]
    assert turned.interval.high > 0.2  # no question differs, which does not prove that none will


def test_questions_of_a_group_are_one() -> None:
    groups = {str(at): f"{at // 4}" for at in range(16)}
    right = {"a": "0" * 16, "b": "0" * 16, "way": "1" * 16}
    apart, together = (
        Joint(one, ["way"]).difference("way", "a") for one in (outcomes(right), outcomes(right, groups=groups))
    )
    assert apart.p is not None and apart.p < 0.01 and together.p is not None
    assert together.p == pytest.approx(2 / 2**4, abs=0.03)
    assert together.interval is not None and together.interval.low == 0


def test_failures_bound_a_difference() -> None:
    given = outcomes({"a": "0" * 9 + ".", "b": "0" * 10, "way": "." + "1" * 9})
    found = Joint(given, ["way"]).difference("way", "a")
    assert found.counts.total == 8 and found.interval is not None and found.bounded is not None
    assert found.bounded.low < found.interval.low and found.low == found.bounded.low


def test_an_interval_leaves_out_0_exactly_where_p_is_small() -> None:
    draw = random.Random(2)
    seen: set[bool] = set()
    for size in (6, 12, 40):
        for _ in range(6):
            right = {
                name: "".join(str(int(draw.random() < rate)) for _ in range(size))
                for name, rate in (("a", 0.4), ("b", 0.5), ("one", 0.5), ("other", 0.9))
            }
            joint = Joint(outcomes(right), ["one", "other"])
            for way in ("one", "other"):
                for model in ("a", "b"):
                    found = joint.difference(way, model)
                    assert found.interval is not None and found.p is not None
                    out = found.interval.low > 0 or found.interval.high < 0
                    assert out == (found.p <= 0.05)
                    seen.add(out)
    assert seen == {True, False}


def standard_error(counts: PairedCounts) -> float:
    return math.sqrt(counts.won + counts.lost - (counts.won - counts.lost) ** 2 / counts.total) / counts.total


def test_intervals_hold_all_together() -> None:
    """In at most about 5 % of comparisons any of 25 intervals misses; single 95 % intervals miss in most of them."""
    draw = random.Random(5)
    ways = {f"way {at}": 0.45 + at / 60 for at in range(12)}
    rates = {"a": 0.5, "b": 0.4, **ways}
    missed = single = 0
    for _ in range(80):
        right = {name: "".join(str(int(draw.random() < rate)) for _ in range(60)) for name, rate in rates.items()}
        joint = Joint(outcomes(right), ways)
        several = [(joint.difference(way, model), rates[way] - rates[model]) for way in ways for model in ("a", "b")]
        assert all(found.interval is not None for found, _ in several)
        missed += any(not found.interval.low <= true <= found.interval.high for found, true in several)  # type: ignore[union-attr]
        single += any(abs(found.value - true) > 1.96 * standard_error(found.counts) for found, true in several)
    assert missed <= 9 < 20 < single


def test_the_better_model_is_the_cheaper_of_two_that_are_as_good() -> None:
    right = {"a": "011", "b": "110", "way": "111"}
    assert outcomes(right).best_model() == "a"
    assert outcomes(right, billed={"a": 2.0, "b": 1.0}).best_model() == "b"
