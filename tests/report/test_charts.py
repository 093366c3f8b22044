"""Parts of charts: scales, and the ticks of their axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api.report.html.charts import Scale

NUMBERS = st.floats(0.5, 1e6)


@given(NUMBERS, NUMBERS, st.booleans())
def test_a_scale_keeps_the_order_and_its_ends(one: float, other: float, log: bool) -> None:
    scale = Scale(0.4, 2e6, 50, 600, log)
    assert scale(0.4) == 50 and scale(2e6) == pytest.approx(650)
    assert 50 <= scale(one) <= 650.001 and (scale(one) <= scale(other)) == (one <= other or scale(one) == scale(other))
    assert scale(-1) == 50 and scale(1e9) == pytest.approx(650)


@given(st.floats(0, 900), st.floats(1, 1e6), st.booleans())
def test_ticks_are_round_and_few(low: float, length: float, log: bool) -> None:
    low = max(low, 1) if log else low
    ticks = Scale(low, low + length, 0, 100, log).ticks()
    assert all(low - 1e-9 * (1 + length) <= tick <= (low + length) * (1 + 1e-9) for tick in ticks)
    assert len(ticks) <= 12 and (log or len(ticks) >= 4)


def test_a_scale_without_length_has_one_place() -> None:
    assert [Scale(2.0, 2.0, 30, 100)(value) for value in (1.0, 2.0, 3.0)] == [30.0, 30.0, 30.0]
