"""Verdicts on claims and controls follow from intervals alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.lab.analysis import growth, longest
from benchmarks.lab.claims import CLAIMS, CONTROLS, Evidence
from benchmarks.lab.page import scenarios
from benchmarks.lab.plan import LENGTHS
from benchmarks.lab.ways import PRINTED_SPECULATIVE
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


def test_what_cannot_be_borne_out_can_be_reversed() -> None:
    assert Evidence("what", Estimated(0.2, 0.1, 0.3), 0.0, "no room").verdict == "not tested"
    assert Evidence("what", Estimated(-0.2, -0.3, -0.1), 0.0, "no room").verdict == "reversed"


def test_nothing_is_claimed_without_runs() -> None:
    assert {one.measure({}).verdict for one in (*CLAIMS, *CONTROLS)} == {"not tested"}


async def test_a_control_that_wins_is_reversed() -> None:
    wins = [await run("n2", test=["fixed"] * 20 + ["both"] * 4)]
    [n2] = [one for one in CONTROLS if one.source == "N2"]
    assert n2.measure(scenarios(wins)).verdict == "reversed"
    even = [await run("n2", test=["both"] * 28 + ["sure"] * 28)]
    assert n2.measure(scenarios(even)).verdict == "seen"
    # What could not have failed is not tested: neither model has what the other lacks.
    alike = n2.measure(scenarios([await run("n2", test=["both"] * 28 + ["neither"] * 28)]))
    assert (alike.verdict, alike.undecidable) == ("not tested", "no room: the oracle is ahead by 0.0 points")


async def test_a_shuffled_assistant_tells_something_where_it_helps_unshuffled() -> None:
    n6 = [await run("n6", test=["both"] * 28 + ["neither"] * 28)]
    rule, _ = [one for one in CONTROLS if one.source == "N6"]
    helps = await run("a-b", test=["fixed"] * 8 + ["both"] * 4)
    assert rule.measure(scenarios([*n6, helps])).verdict == "seen"
    found = rule.measure(scenarios([*n6, await run("a-b", test=["both"] * 8)]))
    assert found.verdict == "not tested" and "adds 0.0 points" in found.undecidable
    assert rule.measure(scenarios(n6)).verdict == "not tested"


async def test_claims_are_decided_by_the_cells_of_their_scenario() -> None:
    runs = [await run(test=["fixed"] * 16 + ["both"] * 4), await run("a-b, reversed", "steps", test=["both"] * 20)]
    found = scenarios(runs)
    assert {*found} == {"a-b", "a-b, reversed", "complementary"}
    by_source = [one.measure(found) for one in CLAIMS if one.source.startswith("CoSD, Table 2, pairs 1")]
    assert by_source[0].verdict == "not tested"  # the draft was chosen, so it is as good without any fusing
    assert by_source[0].undecidable == "the draft alone is as good as best of the two"
    assert {one.verdict for one in by_source[1:]} == {"not tested"}
    [healed] = [one for one in CLAIMS if "forgotten" in one.words]
    forgot = await run("forgot-badly", test=["fixed"] * 16 + ["both"] * 4)
    assert healed.measure(scenarios([forgot])).verdict == "seen"


async def test_iterations_are_compared_with_answers_that_have_grown() -> None:
    """Here every answer has a token or two, whatever the limit."""
    [iterations] = [one for one in CLAIMS if "iterations" in one.words]
    runs = {f"a-b, report {limit}": [await run("a-b", f"report {limit}")] for limit in LENGTHS}
    found = iterations.measure(runs)
    assert (found.verdict, found.undecidable) == ("not tested", "no answer is as long as the limit")
    short = longest(runs["a-b, report 128"], "cosd")
    assert 0 < short < 5
    alike = growth(runs["a-b, report 128"], runs["a-b, report 256"], "cosd")
    assert alike == Estimated(0, 0, 0)


async def test_a_ratio_without_an_interval_decides_nothing() -> None:
    [latency] = [one for one in CLAIMS if "slower" in one.words]
    one = await run()
    answers = [
        *one.comparison.answers,
        *(
            answer.model_copy(update={"contestant": PRINTED_SPECULATIVE})
            for answer in one.comparison.answers_of("cosd-1-1").values()
        ),
    ]
    standings = [
        *one.comparison.standings,
        one.comparison["cosd-1-1"].model_copy(update={"name": PRINTED_SPECULATIVE}),
    ]
    both = one.comparison.model_copy(update={"answers": tuple(answers), "standings": tuple(standings)})
    found = latency.measure(scenarios([replace(one, comparison=both)]))
    assert found.verdict == "not tested" and "a ratio without an interval" in found.what
