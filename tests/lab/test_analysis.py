"""The numbers of the laboratory, on scripted models whose outcomes are known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from statistics import fmean

import pytest

from benchmarks.lab.analysis import (
    Part,
    accuracy,
    calibration_error,
    caught,
    combined,
    counts,
    difference,
    drawn,
    gain,
    itself,
    made_up,
    of_seeds,
    places,
    sign_flips,
    sure_and_wrong,
    table,
    ways,
)
from benchmarks.lab.long_answers import slots
from benchmarks.lab.numbers import cost, share
from benchmarks.lab.runs import BEST
from cosd_api.comparison.contestants import ORACLE, RANDOM
from cosd_api.comparison.statistics import Estimated, PairedCounts, holm, mcnemar, paired_difference, wilson
from lab_runs import run


async def test_differences_and_tests_are_those_of_the_outcomes() -> None:
    runs = [await run(), await run(task="steps", test=["both", "fixed", "draft", "draft", "neither"])]
    assert runs[0].better == "draft"
    # The rule mends what is fixed, and spoils what is spoilt.
    cosd, draft = (4 + 2 - 1 - 1) / 8, 3 / 8
    assert accuracy(runs[:1], "draft").value == draft
    assert accuracy(runs[:1], "cosd").value == cosd
    assert gain(runs[:1], "cosd").value == pytest.approx((2 - 1) / 8)
    assert gain(runs, "cosd").value == pytest.approx((1 / 8 + 1 / 5) / 2)  # each task has the same weight
    assert difference(runs, "cosd", "draft") == gain(runs, "cosd")
    assert accuracy(runs[:1], ORACLE).value == 7 / 8
    found = counts(runs, "cosd", BEST)
    assert found == PairedCounts(both=2 + 3, won=2 + 1, lost=1, neither=3 + 1)
    rows = {row.way: row for row in table(runs)}
    assert list(rows) == ways(runs)
    tested = [row for row in rows.values() if row.p is not None]
    assert {row.way for row in tested} == {"cosd", "cosd-1-1", RANDOM, "self-consistency"} & {*rows}
    assert rows["cosd"].p == mcnemar(found)
    assert [row.holm for row in tested] == holm([row.p or 0.0 for row in tested])
    assert rows[BEST].tokens == rows["draft"].tokens
    assert rows[ORACLE].tokens == pytest.approx(rows["draft"].tokens + rows["assistant"].tokens)
    assert rows["cosd"].iterations == 1  # all its replacements end their answers
    assert rows["draft"].acceptance is None


async def test_shares_and_costs_need_no_draws() -> None:
    runs = [await run(), await run(task="steps", test=["both", "fixed", "draft"])]
    runs.append(replace(runs[0], seed=2))
    rows = {row.way: row for row in table(runs)}
    for way in ("draft", "cosd", BEST, ORACLE):
        assert share(runs, way) == pytest.approx(accuracy(runs, way).value)
    assert math.isnan(share([], "draft"))
    for way in ("draft", "cosd"):
        assert cost(runs, way) == pytest.approx((rows[way].requests, rows[way].tokens))


async def test_of_several_seeds_an_interval_is_no_narrower_than_students() -> None:
    one = await run(test=["fixed"] * 8 + ["both"] * 4)
    other = replace(await run(test=["both"] * 12), seed=2)
    assert of_seeds([_part([1.0, 0.0])]) is None
    found = of_seeds([_part([1.0] * 4), _part([0.0, 1.0] * 2, seed=2)])
    assert found is not None and found.value == 0.75
    assert (found.low, found.high) == (0, 1)  # 0.25 * 12.7 on each side
    assert gain([one, other], "cosd").high == 1
    several = of_seeds([_part([1.0] * right + [0.0] * (10 - right), seed=right) for right in (4, 5, 6)])
    assert several is not None and several.high == pytest.approx(0.5 + 4.303 * 0.1 / math.sqrt(3))


async def test_statements_of_reports_are_counted_by_their_place() -> None:
    one = await run("lengths", "report 512")
    said = [True] * 4 + [False, True] * 2 + [False] * 8
    found = slots([replace(one, slots={"cosd": {"1": said, "2": said}})], "cosd")
    assert [part.value for part in found] == [1, 0.5, 0, 0, 0.375] and found[-1].low == 0.375
    assert slots([one], "cosd") == []


async def test_sure_errors_are_counted_and_found() -> None:
    runs = [await run()]
    assert sure_and_wrong(runs, "draft") == (3, 5)  # sure, surer, neither; fixed ones are unsure
    rule, both = caught(runs, "cosd"), caught(runs, "cosd-1-1")
    assert (rule.wrong, rule.mended, rule.right, rule.spoilt) == (3, 0, 2, 0)  # the rule asks nobody there
    assert (both.wrong, both.mended, both.right, both.spoilt) == (3, 1, 2, 0)  # "surer": 0.93 against 0.95
    assert 0 < calibration_error(runs, "draft") < 1


async def test_replaced_places_add_up() -> None:
    one = await run()
    single, twice = places([one], "cosd"), places([one, one], "cosd")
    assert single is not None and twice is not None
    assert (single.assistant, single.draft) == (2, 1)
    assert (twice.places, twice.answers.won, twice.answers.lost) == (2 * single.places, 4, 2)
    assert places([one], "draft") is None
    found = itself([one])
    assert found.changed == found.unexplained > 0 == found.ties  # another model, by far
    assert found.answers == 8 * len([way for way in one.ways if "cosd" in way or way == RANDOM])


def _part(values: Sequence[float], task: str = "steps", seed: int = 1, of_each: int = 1) -> Part:
    """A run of a task; one after the other, `of_each` questions ask the same."""
    clusters: dict[tuple[str, str], list[float]] = {}
    for at, value in enumerate(values):
        clusters.setdefault((task, str(at // of_each)), []).append(value)
    return Part(seed, clusters, wilson(round(sum(values)), len(values)), 0.0)


def test_an_interval_does_not_collapse() -> None:
    part = paired_difference(PairedCounts(40, 0, 0, 40))
    same = [Part(1, {(task, str(at)): [0.0] for at in range(80)}, part, -1.0) for task in ("steps", "code")]
    assert drawn(same) == Estimated(0, 0, 0)
    found = combined(same)
    assert found.value == 0 and part.low < found.low < 0 < found.high < part.high
    assert found.low == pytest.approx(part.low / math.sqrt(2))
    # Two runs with the same questions are no more questions; neither are several wordings of one.
    assert combined([same[0], replace(same[0])]).low == pytest.approx(part.low)
    twice = Part(1, {("facts", str(at)): [0.0] * 4 for at in range(20)}, part, -1.0)
    assert combined([twice]).low == pytest.approx(2 * part.low)


def test_the_bootstrap_covers() -> None:
    """Of 95 % intervals for two seeds of two tasks, about as many as they say cover the mean of what was drawn from."""
    draw = random.Random(4)
    covered = 0
    for _ in range(30):
        parts: list[Part] = []
        for seed, task, chance in product((1, 2), ("steps", "code"), (0.45,)):
            parts.append(_part([float(draw.random() < chance) for _ in range(40)], f"{task} {seed}", seed))
        found = drawn(parts)
        assert found.value == pytest.approx(fmean(fmean(chain(*part.values.values())) for part in parts))
        covered += found.low <= 0.45 <= found.high
    assert covered >= 24


def test_repeated_questions_do_not_narrow_an_interval() -> None:
    draw = random.Random(7)
    known = [float(draw.random() < 0.5) for _ in range(60)]
    once = drawn([_part(known)])
    for parts in (
        [_part([value for value in known for _ in range(4)], of_each=4)],  # wordings of one fact
        [_part(known, seed=seed) for seed in (1, 2, 3)],  # seeds with equal answers
        [_part(known), _part(known)],  # both directions, likewise
    ):
        found = drawn(parts)
        assert found.value == once.value
        assert found.high - found.low == pytest.approx(once.high - once.low, rel=0.1)


async def test_wins_and_losses_are_exchanged_by_what_is_asked() -> None:
    runs = [await run(test=["fixed"] * 8 + ["both"] * 4)]
    single = counts(runs, "cosd", "draft")
    assert sign_flips(runs, "cosd", "draft") == pytest.approx(mcnemar(single)) == 2 / 2**8
    # The same questions, asked of another seed, say nothing new.
    again = [*runs, replace(runs[0], seed=2)]
    assert sign_flips(again, "cosd", "draft") == pytest.approx(2 / 2**8)
    # Four wordings of one fact are one question.
    keys = [*runs[0].right("draft")]
    facts = [replace(runs[0], facts={key[:12]: f"fact {at // 4}" for at, key in enumerate(keys)})]
    assert sign_flips(facts, "cosd", "draft") == pytest.approx(2 / 2**2)
    assert {row.p for row in table(facts) if row.way == "cosd"} == {sign_flips(facts, "cosd", BEST)}
    assert sign_flips(runs, "draft", "draft") == 1


async def test_a_bound_is_met_as_if_the_questions_that_make_up_for_it_were_won() -> None:
    """Of 40 questions a loss of 5 points is 2: so many are won in addition, and no more is proved by equal answers."""
    alike = [await run(test=["both"] * 40)]
    assert sign_flips(alike, "cosd", "draft", -0.05) == sign_flips(alike, "cosd", "draft", 0.05) == 2 / 2**2
    ahead = [await run(test=["fixed"] * 8 + ["both"] * 32)]
    assert sign_flips(ahead, "cosd", "draft", -0.05) == 2 / 2**10
    assert sign_flips(ahead, "cosd", "draft", 0.05) == sign_flips(ahead, "draft", "cosd", -0.05)
    assert sign_flips(ahead, "cosd", "draft", 0.2) == 1  # the bound itself
    # Four wordings of one fact are won together.
    keys = [*alike[0].right("draft")]
    facts = [replace(alike[0], facts={key[:12]: f"fact {at // 4}" for at, key in enumerate(keys)})]
    assert sign_flips(facts, "cosd", "draft", -0.1) == 2 / 2


@pytest.mark.parametrize("bound", [0.05, -0.05, 0.1])
def test_what_makes_up_for_a_bound_is_its_share_of_the_questions(bound: float) -> None:
    draw = random.Random(5)
    sizes = [draw.choice((1, 1, 1, 4)) for _ in range(300)]
    found = made_up(sizes, bound)
    assert sum(found) == round(abs(bound) * sum(sizes)) and {*found} == {1, 4}
    assert made_up(sizes, 0.0) == made_up([], bound) == []


def test_the_test_against_a_bound_is_not_too_sure() -> None:
    """Where the loss is that of the bound exactly, hardly more than 2.5 % of samples deny it on either side."""
    draw = random.Random(6)
    above = below = 0
    for _ in range(400):
        lost = sum(draw.random() < 0.1 for _ in range(80))
        won = sum(draw.random() < 0.05 for _ in range(80 - lost))
        extra = len(made_up([1] * 80, -0.05))
        p = mcnemar(PairedCounts(0, won + extra, lost, 0))  # of clusters of one question
        above += p < 0.05 and won + extra > lost
        below += p < 0.05 and won + extra < lost
    assert 0 < above <= 16 and below <= 16
