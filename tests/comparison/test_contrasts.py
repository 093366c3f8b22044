"""Differences that hold together: small cases by hand, agreement of p and interval, and coverage by simulation."""

from __future__ import annotations

import math
import random

import pytest

from cosd_api.comparison.contrasts import GradedOutcomes, Joint, alike, best_model, best_way, leading
from cosd_api.comparison.statistics import Estimated, PairedCounts


def outcomes(right: dict[str, str], **more: dict[str, str] | dict[str, float] | dict[str, set[str]]) -> GradedOutcomes:
    """GradedOutcomes written as digits, a question each; a dot has failed. `a` and `b` are the models."""
    several = {name: {str(at): one == "1" for at, one in enumerate(of) if one != "."} for name, of in right.items()}
    failed = {name: {str(at) for at, one in enumerate(of) if one == "."} for name, of in right.items()}
    questions = [str(at) for at in range(max(map(len, right.values())))]
    return GradedOutcomes(("a", "b"), questions, several, failed, **more)  # type: ignore[arg-type]


def test_a_difference_by_hand() -> None:
    joint = Joint(outcomes({"a": "0" * 8, "b": "0" * 8, "way": "1" * 8}), ["way"])
    found = joint.difference("way", "a")
    assert found.counts == PairedCounts(0, 8, 0, 0) and found.groups is None and found.bounded is None
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
    assert together.p == pytest.approx(2 / 2**4, abs=0.03) and together.groups == (4, 0)
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


def test_a_star_is_for_what_no_cheaper_one_equals_within_a_standard_error() -> None:
    right = {"a": "01111" + "0" * 11, "b": "1" + "0" + "1" * 4 + "0" * 10, "way": "1" * 9 + "0" * 7}
    billed = {"a": 1.0, "b": 2.0, "way": 3.0}
    given = outcomes(right, billed=billed)
    assert leading(given, right) == {"a", "way"}  # b: 2 questions won, 1 lost, 1 ahead; a standard error is 1.7
    assert (best_model(given), best_way(given, ["way"])) == ("b", "way")


def test_equal_texts_are_those_of_the_cheapest() -> None:
    texts = {"one": ["x", "y"], "two": ["x", "y"], "three": ["x", "z"], "four": None}
    assert alike(texts, {"one": 3.0, "two": 2.0, "three": 1.0}) == {"one": "two"}
