"""Verdicts on claims and controls follow from one test of each contrast, and its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.lab.analysis import sign_flips, table
from benchmarks.lab.claims import CLAIMS, CONTROLS, Claim, Decided, Evidence, Scenarios, decided, scenarios
from benchmarks.lab.long_answers import growth, longest
from benchmarks.lab.plan import LENGTHS
from benchmarks.lab.runs import BEST, Run
from benchmarks.lab.ways import PRINTED_SPECULATIVE
from cosd_api.comparison.statistics import Estimated
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")


def _single(claim: Claim, *runs: Run) -> Decided:
    [one] = decided([claim], scenarios(runs))
    return one


@pytest.mark.parametrize(
    ("effect", "bound", "p", "verdict"),
    [
        (Estimated(0.2, 0.1, 0.3), 0.0, 0.04, "seen"),
        (Estimated(0.2, 0.1, 0.3), 0.0, 0.05, "not seen"),
        (Estimated(0.2, 0.0, 0.3), 0.0, 0.04, "not seen"),  # the interval is the wider one, of several trainings
        (Estimated(-0.01, -0.04, 0.3), -0.05, 0.04, "seen"),
        (Estimated(-0.2, -0.3, -0.06), -0.05, 0.04, "reversed"),
        (Estimated(-0.2, -0.3, -0.04), -0.05, 0.04, "not seen"),
        (None, 0.0, None, "not tested"),
    ],
)
def test_verdicts(effect: Estimated | None, bound: float, p: float | None, verdict: str) -> None:
    assert Evidence("what", effect, bound, p=p).verdict(p) == verdict


async def test_one_contrast_has_one_p_value() -> None:
    """That of a claim is that of the table by method; against another bound it is the same test."""
    runs = [await run("n2", test=["fixed"] * 8 + ["both"] * 24)]
    n2, *_ = [one for one in CONTROLS if one.source == "N2"]
    found = n2.measure(scenarios(runs))
    assert found.bound == -0.05 and found.p == sign_flips(runs, BEST, "cosd", -0.05)
    [spoils] = [one for one in CLAIMS if one.source == "CoSD, limitation 2"]
    spoilt = [await run("n4", test=["spoilt"] * 8 + ["both"] * 24)]
    [row] = [row for row in table(spoilt) if row.way == "cosd"]
    assert spoils.measure(scenarios(spoilt)).p == row.p == 2 / 2**8


async def test_a_verdict_says_of_which_weights_it_is() -> None:
    """Of one training, or of several cells that share it; cells that share none, and other seeds, are more."""
    healed = next(one for one in CLAIMS if "forgotten" in one.words)
    test = ["fixed"] * 16 + ["both"] * 4
    one = await run("forgot-badly", test=test)
    single = _single(healed, one, await run("forgot-mildly", "steps", test=test))
    assert (single.verdict, single.evidence.trainings, single.of_these_weights) == ("seen", 1, True)
    several = _single(healed, one, replace(one, seed=2))
    assert (several.evidence.trainings, several.of_these_weights) == (2, False)
    unseen = _single(healed, await run("forgot-badly", test=["both"] * 8))
    assert unseen.evidence.trainings == 1 and not unseen.of_these_weights


def _claim(effect: Estimated | None, p: float | None, undecidable: str = "") -> Claim:
    def measure(_: Scenarios) -> Evidence:
        return Evidence("what", effect, 0.0, undecidable, p)

    return Claim("", "", measure)


def test_claims_are_decided_together() -> None:
    """Holm: of three claims the first needs a third of the level, the second half of it."""
    seen = Estimated(0.2, 0.1, 0.3)
    claims = [_claim(seen, p) for p in (0.04, 0.02, 0.01)]
    nothing = _claim(None, None)
    assert [one.verdict for one in decided([*claims, nothing], {})] == ["seen"] * 3 + ["not tested"]
    doubtful = [_claim(seen, 0.3)] * 3
    assert [one.verdict for one in decided([claims[0], *doubtful], {})] == ["not seen"] * 4
    # What cannot be decided takes nothing from the others.
    blocked = [_claim(seen, 0.3, "no room")] * 3
    assert [one.verdict for one in decided([claims[0], *blocked], {})] == ["seen"] + ["not tested"] * 3


def test_what_cannot_be_borne_out_can_be_reversed() -> None:
    for effect, verdict in ((Estimated(0.2, 0.1, 0.3), "not tested"), (Estimated(-0.2, -0.3, -0.1), "reversed")):
        [one] = decided([_claim(effect, 0.01, "no room")], {})
        assert one.verdict == verdict


def test_nothing_is_claimed_without_runs() -> None:
    assert {one.verdict for several in (CLAIMS, CONTROLS) for one in decided(several, {})} == {"not tested"}


async def test_a_control_that_wins_is_reversed() -> None:
    n2, *_ = [one for one in CONTROLS if one.source == "N2"]
    assert _single(n2, await run("n2", test=["fixed"] * 20 + ["both"] * 4)).verdict == "reversed"
    even = _single(n2, await run("n2", test=["both"] * 60 + ["sure"] * 60))
    assert even.verdict == "seen"
    assert even.evidence.what == "best of the two less cosd in n2 (bio); oracle: +50.0"
    # What could not have failed is not tested: neither model has what the other lacks.
    alike = _single(n2, await run("n2", test=["both"] * 28 + ["neither"] * 28))
    assert (alike.verdict, alike.evidence.undecidable) == ("not tested", "no room: the oracle is ahead by 0.0 points")


async def test_a_shuffled_assistant_tells_something_where_it_helps_unshuffled() -> None:
    n6 = await run("n6", test=["both"] * 60 + ["neither"] * 60)
    rule, _ = [one for one in CONTROLS if one.source == "N6"]
    helps = await run("c-d", test=["fixed"] * 8 + ["both"] * 4)
    assert _single(rule, n6, helps).verdict == "seen"
    found = _single(rule, n6, await run("c-d", test=["both"] * 8))
    assert found.verdict == "not tested" and "adds 0.0 points" in found.evidence.undecidable
    assert _single(rule, n6).verdict == "not tested"


async def test_a_coin_is_told_from_the_rule_where_something_is_replaced() -> None:
    rule = next(one for one in CONTROLS if one.source == "N5" and "better than a coin" in one.words)
    nothing = await run("c-d", "bio", test=["both"] * 8)
    several = [nothing, await run("c-d", "steps", test=["fixed"] * 12 + ["both"] * 4)]
    assert "in c-d (steps)" in _single(rule, *several).evidence.what
    assert _single(rule, nothing).verdict == "not tested"


async def test_claims_are_decided_by_the_runs_that_they_name() -> None:
    runs = [
        await run(test=["fixed"] * 16 + ["both"] * 4),
        await run("a-b, reversed", "steps", test=["both"] * 20),
        await run("forgot-badly", test=["fixed"] * 16 + ["both"] * 4),
        await run("forgot-mildly", "steps", test=["fixed"] * 16 + ["both"] * 4),
        await run("thresholds", "steps", test=["both"] * 4),
    ]
    found = scenarios(runs)
    assert {name: len(several) for name, several in found.items()} == {
        "a-b": 1,
        "a-b, reversed": 1,
        "forgot-badly": 1,
        "forgot-mildly": 1,
        "forgetting": 2,
        "thresholds": 1,
    }
    pairs = [one for one in decided(CLAIMS, found) if one.claim.source.startswith("CoSD, Table 2, pairs 1")]
    assert {one.verdict for one in pairs} == {"not tested"}
    as_good = pairs[len(pairs) // 2]  # of `a-b`; none of `c-d` was run
    assert as_good.evidence.undecidable == "the draft alone is as good as best of the two"  # the draft was chosen
    [healed] = [one for one in CLAIMS if "forgotten" in one.words]
    assert _single(healed, *runs).verdict == "seen"
    assert "forgot-mildly and forgot-badly (steps, bio)" in _single(healed, *runs).evidence.what


async def test_iterations_are_compared_with_answers_that_have_grown() -> None:
    """Here every answer has a token or two, whatever the limit."""
    [iterations] = [one for one in CLAIMS if "iterations" in one.words]
    several = [await run("lengths", f"report {limit}") for limit in LENGTHS]
    found = _single(iterations, *several)
    assert (found.verdict, found.evidence.undecidable) == ("not tested", "no answer is as long as the limit")
    assert 0 < longest(several[:1], "cosd") < 5
    alike = growth(several[:1], several[1:2], "cosd")
    assert alike == Estimated(0, 0, 0)


async def test_a_ratio_without_an_interval_decides_nothing() -> None:
    [latency] = [one for one in CLAIMS if "slower" in one.words]
    one = await run("latency")
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
    found = _single(latency, replace(one, comparison=both))
    assert found.verdict == "not tested" and "a ratio without an interval" in found.evidence.what
