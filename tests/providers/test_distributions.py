"""Distributions of two answers: equal but for noise, or changed by a temperature."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers import Token
from cosd_providers.distributions import agree, listed, near, power_of
from cosd_providers.greedy import Choice, Position

ODDS = st.lists(st.integers(1, 100), min_size=4, max_size=6, unique=True)


def position(probs: Sequence[float | None]) -> Position:
    first, *others = [Choice(n, Token(bytes([n]), prob)) for n, prob in enumerate(probs)]
    return Position(first, others)


def softmax(odds: Sequence[int], power: float = 1.0) -> list[float]:
    powers = sorted((float(one) ** power for one in odds), reverse=True)
    return [one / sum(powers) for one in powers]


@given(odds=ODDS)
def test_a_distribution_agrees_with_itself(odds: list[int]) -> None:
    one = position(softmax(odds))
    assert agree(one, one)
    assert power_of([(one, one)] * 3) is None


@given(odds=ODDS)
def test_rounding_to_eighths_of_a_logit_is_noise(odds: list[int]) -> None:
    exact = softmax(odds)
    rounded = [prob * (1.13 if at % 2 else 0.88) for at, prob in enumerate(exact)]
    assert agree(position(rounded), position(exact))


@given(odds=ODDS, power=st.sampled_from([0.5, 2.0]))
def test_another_temperature_is_a_power_of_the_ratios(odds: list[int], power: float) -> None:
    exact, changed = position(softmax(odds)), position(softmax(odds, power))
    found = power_of([(changed, exact)])
    if max(odds) / min(odds) > 4:
        assert found == pytest.approx(power, rel=1e-6)


def test_what_is_compared() -> None:
    generated = position([0.6, 0.3, 0.1])
    assert agree(position([0.6]), generated)  # where it shows its own token alone, that is compared
    assert not agree(position([0.2]), generated)
    assert not agree(position([None]), generated)
    assert not agree(position([0.1, 0.3, 0.6]), generated)
    assert listed(position([0.6, None])) == {(b"\0", False): 0.6}
    assert near(0.5, 0.6) and not near(0.5, 0.8)
