"""Sign flips, held against a naive transcription; and how often they err where nothing differs."""

from __future__ import annotations

import math
import random
import re
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import SettingError
from cosd_api.comparison.sign_flips import FLIPS, Contrast, SignFlips, adjusted_p, bound, exceeds

Sums = st.lists(st.lists(st.integers(-9, 9), min_size=7, max_size=7), min_size=1, max_size=4)


def naive(sums: list[int], signs: list[int]) -> float:
    squares = sum(one * one for one in sums)
    return sum(one * sign for one, sign in zip(sums, signs, strict=True)) / math.sqrt(squares) if squares else 0.0


@given(Sums, st.booleans())
def test_maxima_are_those_of_the_definition(several: list[list[int]], two_sided: bool) -> None:
    flips = SignFlips([f"q{at}" for at in range(7)], count=40)
    signs = [[1 if flip >> at & 1 else -1 for at in range(7)] for flip in flips.flips]
    contrasts = [flips.contrast(zip(flips.groups, sums, strict=True)) for sums in several]
    assert [one.statistic for one in contrasts] == pytest.approx([naive(sums, [1] * 7) for sums in several])
    expected = [[naive(sums, row) for sums in several] for row in signs]
    largest = [max(abs(one) if two_sided else one for one in row) for row in expected]
    assert flips.maxima(contrasts, two_sided=two_sided) == pytest.approx(largest)


def test_questions_of_one_group_are_one_sum() -> None:
    flips = SignFlips(["a", "b", "a"], count=10)
    assert flips.groups == ("a", "b")
    found = flips.contrast([("a", 1), ("b", 1), ("a", 1), ("b", -1)])
    assert (found, found.total, found.squares) == (Contrast.of([2, 0]), 2, 4)
    assert {*found.flipped(flips.flips)} == {1.0, -1.0}
    with pytest.raises(KeyError):
        flips.contrast([("c", 1)])


def test_more_groups_extend_the_flips() -> None:
    keys = [f"q{at}" for at in range(30)]
    few, many = SignFlips(keys[:20]), SignFlips(keys)
    assert len(few.flips) == FLIPS
    assert few.flips == [flip & (1 << 20) - 1 for flip in many.flips] != many.flips
    assert SignFlips([]).maxima([]) == [-math.inf] * FLIPS


def test_signs_are_fair_and_independent() -> None:
    flips = SignFlips([f"q{at}" for at in range(40)])
    kept = [flip.bit_count() for flip in flips.flips]
    assert mean(kept) == pytest.approx(20, abs=4 * math.sqrt(10 / FLIPS))
    assert mean((one - 20) ** 2 for one in kept) == pytest.approx(10, abs=4 * math.sqrt(200 / FLIPS))


@given(
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]), min_size=19, max_size=19), st.sampled_from([0.5, 1.0, 3.0])
)
def test_a_bound_is_exceeded_where_the_p_value_is_at_most_the_level(maxima: list[float], statistic: float) -> None:
    for level in (0.05, 0.1, 0.5):
        assert exceeds(statistic, bound(maxima, level)) == (adjusted_p(statistic, maxima) <= level)


def test_too_few_flips_for_a_level_exceed_nothing() -> None:
    assert bound([1.0] * 19, 0.04) == math.inf and bound([1.0] * 19, 0.05) == 1.0
    with pytest.raises(SettingError, match=re.escape("level must be a number between 0 and 1, not 1.5")):
        bound([1.0], 1.5)


def test_one_number_by_two_roots_is_a_tie() -> None:
    one, other = Contrast.of([1] * 3), Contrast.of([2] * 3)
    assert one.statistic == pytest.approx(other.statistic)
    assert not exceeds(one.statistic, other.statistic) and not exceeds(other.statistic, one.statistic)
    assert adjusted_p(one.statistic, [other.statistic]) == adjusted_p(other.statistic, [one.statistic]) == 1.0


def test_it_errs_as_often_as_its_level_where_nothing_differs() -> None:
    """Eight contrasts that share half of their questions' outcomes; three standard deviations of 400 runs are 0.033."""
    rng = random.Random(1)
    flips, errors = SignFlips([f"q{at}" for at in range(60)], count=199), 0
    for _ in range(400):
        common = [rng.choice((-1, 0, 1)) for _ in flips.groups]
        several = [
            Contrast.of([one if rng.random() < 0.5 else rng.choice((-1, 0, 1)) for one in common]) for _ in "8" * 8
        ]
        maxima = flips.maxima(several)
        errors += max(one.statistic for one in several) > bound(maxima, 0.05)
    assert 0.017 <= errors / 400 <= 0.083
