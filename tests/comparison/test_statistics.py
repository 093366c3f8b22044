"""Statistics, against textbook values, enumeration of every outcome, and definitions written down naively."""

from __future__ import annotations

import math
import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import SettingError
from cosd_api.comparison.statistics import (
    CalibrationBin,
    Estimated,
    PairedCounts,
    calibration,
    frontier,
    mean,
    wilson,
)
from drawn import costly

COUNTS = st.builds(PairedCounts, *[st.integers(0, 40)] * 4)
SHARES = st.floats(0, 1)


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
    found = wilson(right, total)
    assert found.value == right / total
    assert ends(found) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_solves_its_equation(right: int, total: int, level: float) -> None:
    right = min(right, total)
    found = wilson(right, total, level)
    assert 0 <= found.low <= found.value <= found.high <= 1
    z = {0.5: 0.67448975, 0.9: 1.64485363, 0.95: 1.95996398, 0.99: 2.57582930}[level]
    for end in ends(found):
        if 0 < end < 1:
            assert abs(found.value - end) == pytest.approx(z * math.sqrt(end * (1 - end) / total), rel=1e-6)


def test_wilson_of_wrong_answers_is_its_mirror() -> None:
    for right, total in [(0, 1), (3, 7), (7, 7), (1, 1000)]:
        mirrored = wilson(total - right, total)
        assert ends(wilson(right, total)) == pytest.approx((1 - mirrored.high, 1 - mirrored.low))


def test_wilson_covers_the_true_share_about_as_often_as_it_says() -> None:
    """Exactly, by every outcome, as in figure 5 of Brown, Cai and DasGupta: near 95 % in the mean over shares."""
    total = 40
    intervals = [wilson(right, total) for right in range(total + 1)]
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
    found = wilson(0, 0)
    assert math.isnan(found.value) and ends(found) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wilson(3, 2), "right must be between 0 and total, not 3 of 2"),
        (lambda: wilson(-1, 2), "right must be a whole number of at least 0, not -1"),
        (lambda: wilson(1, 2, 95), "level must be a number between 0 and 1, such as 0.95, not 95"),
        (lambda: mean([1.0, 2.0], 0), "level must be a number between 0 and 1, such as 0.95, not 0"),
        (lambda: mean([1.0, math.inf]), "a mean is taken of finite numbers"),
        (lambda: PairedCounts(1, 2, -1, 0), "lost must be a whole number of at least 0, not -1"),
        (lambda: PairedCounts.of([True], []), "outcomes are compared in pairs, but there are 1 and 0"),
        (lambda: calibration([(1.1, True)]), "probabilities must be between 0 and 1, not 1.1"),
        (lambda: calibration([], bins=0), "bins must be a whole number of at least 1, not 0"),
    ],
)
def test_invalid_numbers_are_refused_in_words(call: object, words: str) -> None:
    with pytest.raises(SettingError, match=words.replace(".", r"\.")):
        call()  # type: ignore[operator]


# Pairs.


def test_pairs_are_counted_question_by_question() -> None:
    mine, theirs = [True, True, True, False, False, True], [True, False, False, True, False, True]
    counts = PairedCounts.of(mine, theirs)
    assert counts == PairedCounts(both=2, won=2, lost=1, neither=1)
    assert (counts.total, counts.difference) == (6, 1 / 6)


# Calibration.


def test_calibration_by_hand() -> None:
    """Two answers near 0.9, of which one is right, one of 0.2 that is wrong, one of 1 that is right."""
    found = calibration([(0.88, True), (0.82, False), (0.2, False), (1.0, True)], bins=5, alpha=0.5)
    assert found.error == pytest.approx(0.25 * 0.2 + 0.75 * (0.9 - 2 / 3))
    assert [one.answers for one in found.bins] == [0, 1, 0, 0, 3]
    assert found.bins[1] == CalibrationBin(0.2, 0.4, 1, 0.2, 0.0)
    assert found.bins[0] == CalibrationBin(0.0, 0.2, 0, None, None)
    assert (found.wrong, found.confident_wrong) == (2, 1)
    assert (found.answers, found.accuracy) == (4, 0.5) and found.confidence == pytest.approx(0.725)


def test_calibration_of_nothing() -> None:
    found = calibration([])
    assert found.answers == 0 and all(math.isnan(one) for one in (found.error, found.confidence, found.accuracy))


@given(st.lists(st.tuples(SHARES, st.booleans()), min_size=1), st.integers(1, 20), SHARES)
def test_calibration_by_its_definition(answers: list[tuple[float, bool]], bins: int, alpha: float) -> None:
    found = calibration(answers, bins=bins, alpha=alpha)
    error = 0.0
    for at in range(bins):
        low, high = at / bins, (at + 1) / bins
        inside = [(p, right) for p, right in answers if low <= p < high or (p == high == 1)]
        assert found.bins[at].answers == len(inside)
        if inside:
            accuracy = sum(right for _, right in inside) / len(inside)
            error += len(inside) / len(answers) * abs(accuracy - sum(p for p, _ in inside) / len(inside))
    assert found.error == pytest.approx(error, abs=1e-9) and 0 <= found.error <= 1 + 1e-9
    assert found.confident_wrong == sum(p >= alpha for p, right in answers if not right)


def test_a_calibrated_model_has_nearly_no_error() -> None:
    chance = random.Random(1)
    said = [chance.random() for _ in range(4000)]
    assert calibration((p, chance.random() < p) for p in said).error < 0.03
    assert calibration((p, chance.random() < 0.5) for p in said).error > 0.2


# Means.


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # two-sided 95 %, of every textbook
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799)],
)
def test_mean_takes_the_quantile_of_the_table(freedom: int, quantile: float) -> None:
    values = [1.0, -1.0] * ((freedom + 1) // 2) + [0.0] * ((freedom + 1) % 2)
    found = mean(values)
    spread = math.sqrt(sum(value**2 for value in values) / freedom)
    assert found.value == 0.0
    assert found.high == -found.low == pytest.approx(quantile * spread / math.sqrt(freedom + 1), rel=2e-5)


def test_mean_of_one_and_of_none() -> None:
    assert mean([3.0]) == Estimated(3.0, -math.inf, math.inf)
    assert math.isnan(mean([]).value)


def test_mean_covers_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(5)
    inside = 0
    for _ in range(1000):
        found = mean([chance.gauss(2, 3) for _ in range(6)])
        inside += found.low <= 2 <= found.high
    assert inside == pytest.approx(950, abs=3 * math.sqrt(47.5))


# The frontier.


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
@costly(50)
def test_frontier_keeps_exactly_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] <= other[0] and one[1] >= other[1]

    kept = frontier(points)
    assert set(kept) == {at for at, point in enumerate(points) if not any(beats(other, point) for other in points)}
    assert [points[at][0] for at in kept] == sorted(points[at][0] for at in kept)
