"""Verdicts on claims and controls follow from intervals alone."""

from __future__ import annotations

import math

import pytest

from benchmarks.lab.claims import CLAIMS, CONTROLS, Evidence
from benchmarks.lab.page import scenarios
from cosd_api.comparison.statistics import Estimated
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.mark.parametrize(
    ("effect", "bound", "verdict"),
    [
        (Estimated(0.2, 0.1, 0.3), 0.0, "seen"),
        (Estimated(0.2, 0.0, 0.3), 0.0, "not seen"),
        (Estimated(-0.01, -0.04, 0.3), -0.05, "seen"),
        (Estimated(-0.2, -0.3, -0.06), -0.05, "reversed"),
        (Estimated(-0.2, -0.3, -0.05), -0.05, "not seen"),
        (Estimated(math.nan, -1, 1), 0.0, "not tested"),
        (None, 0.0, "not tested"),
    ],
)
def test_verdicts(effect: Estimated | None, bound: float, verdict: str) -> None:
    assert Evidence("what", effect, bound).verdict == verdict


def test_nothing_is_claimed_without_runs() -> None:
    assert {one.measure({}).verdict for one in (*CLAIMS, *CONTROLS)} == {"not tested"}


async def test_a_control_that_wins_is_reversed() -> None:
    wins = [await run("n2", test=["fixed"] * 20 + ["both"] * 4)]
    [n2] = [one for one in CONTROLS if one.source == "N2"]
    assert n2.measure(scenarios(wins)).verdict == "reversed"
    even = [await run("n2", test=["both"] * 28 + ["neither"] * 28)]
    assert n2.measure(scenarios(even)).verdict == "seen"


async def test_claims_are_decided_by_the_cells_of_their_scenario() -> None:
    runs = [await run(test=["fixed"] * 16 + ["both"] * 4), await run("a-b, reversed", "steps", test=["both"] * 20)]
    found = scenarios(runs)
    assert {*found} == {"a-b", "a-b, reversed", "complementary"}
    by_source = [one.measure(found) for one in CLAIMS if one.source.startswith("CoSD, Table 2, pairs 1")]
    assert by_source[0].verdict == "seen"
    assert {one.verdict for one in by_source[1:]} == {"not tested"}
