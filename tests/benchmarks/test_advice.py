"""Advice where the answer is known: what was kept is what is known, and what is asked is held out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.advice import ADVISED, BESIDE, CASES, COPY, FRESH, NOISY, QUICK_METHODS, Case, all_ways, asked
from benchmarks.noisy import write_noisy
from benchmarks.page import tables
from benchmarks.report import Options
from benchmarks.simulated_advice import (
    NULL,
    PAIRS,
    POWER,
    REAL,
    SIMULATED_CALLS,
    World,
    kept,
    run_on,
    simulations,
    swapped,
)
from cosd_api import CoSD, RuleVerifier
from cosd_api.demo.questions import is_held_out
from cosd_api.demo.servers import BUNDLED, MODELS


def test_every_direction_and_the_pairs_that_must_not_be_fused() -> None:
    assert {(one.draft, one.assistant) for one in CASES if one.fuse} == {
        (draft, other) for draft in BUNDLED for other in BUNDLED if draft != other
    }
    assert {one.draft for one in CASES if not one.fuse} | {one.assistant for one in CASES if not one.fuse} == {
        "sums",
        COPY,
        NOISY,
    }


def test_the_advice_that_was_kept_is_what_is_known() -> None:
    advised, compared, *_ = tables("advice")
    assert [(row[0], row[1]) for row in advised.rows] == [(one.draft, one.assistant) for one in CASES]
    for case, row, new in zip(CASES, advised.rows, compared.rows, strict=True):
        said = dict(zip(advised.columns, row, strict=True))
        found = dict(zip(compared.columns, new, strict=True))
        assert said["advice"] == ("fuse them" if case.fuse else "sums alone"), case
        p = 0.0 if str(found["p"]).startswith("<") else float(str(found["p"]))
        assert (p < 0.01 and str(found["difference"])[0] == "+") or not case.fuse
        assert case.fuse or int(str(found["difference"])) <= 0
        figures = advised.figures[f"{case.draft}, {case.assistant}"]
        tokens = figures["estimate"]["billed_tokens"]
        assert tokens["low"] <= figures["billed_tokens"] <= tokens["high"]


def test_ways_have_the_names_of_the_first_run() -> None:
    ways = all_ways()
    assert ways["cosd"] == CoSD(verifier=RuleVerifier.paper())
    assert ways["cosd-0.9-1"] == CoSD(verifier=RuleVerifier(alpha=0.9, beta=1))
    assert {*QUICK_METHODS, *BESIDE, "cosd-0.97-1", "average"} <= {*ways} and "cosd-paper" not in ways


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.draft} {one.assistant}")
def test_questions_are_held_out_and_asked_once(case: Case) -> None:
    questions, others = asked(case.kinds, ADVISED), asked(case.kinds, FRESH, after=ADVISED)
    prompts = [str(example.prompt) for example, _ in [*questions, *others]]
    assert len({*prompts}) == ADVISED + FRESH
    for prompt in prompts:
        numbers = [int(one) for one in re.findall(r"\d+", prompt)]
        assert not numbers or is_held_out(*numbers)
    example, right = questions[0]
    assert right(example.answer) and not right(" no")


def test_noise_changes_matrices_alone(tmp_path: Path) -> None:
    model, copy, same = MODELS / "sums.gguf", tmp_path / "noisy.gguf", tmp_path / "same.gguf"
    write_noisy(model, same, 0.0)
    assert same.read_bytes() == model.read_bytes()
    write_noisy(model, copy, 0.3)
    first, second = model.read_bytes(), copy.read_bytes()
    assert len(first) == len(second) and first[:14_000] == second[:14_000]  # the header
    differing = sum(one != other for one, other in zip(first, second, strict=True))
    assert differing > len(first) / 2


# Simulations.


def test_a_world_has_its_gain_and_its_discordance() -> None:
    found = World(0.11, 0.25).outcomes(4000, "a")
    gains = sorted(found.right(way) - found.right("better") for way in found.ways)
    assert gains[-1] / 4000 == pytest.approx(0.11, abs=0.03) and gains[0] / 4000 == pytest.approx(-0.033, abs=0.03)
    counts = [found.counts(way, "better", found.questions) for way in found.ways]
    assert all((one.won + one.lost) / 4000 == pytest.approx(0.25, abs=0.03) for one in counts)
    assert (found.right("better") - found.right("other")) / 4000 == pytest.approx(0.1, abs=0.03)
    assert found == World(0.11, 0.25).outcomes(4000, "a") != World(0.11, 0.25).outcomes(4000, "b")


def test_swapped_labels_turn_differences_round() -> None:
    found = World(0.2, 0.25).outcomes(2000, "a")
    other = swapped(found, "b")
    (right,) = other.alone.values()
    for way in found.ways:
        before = [found.ways[way][key] - found.alone["better"][key] for key in found.questions]
        after = [other.ways[way][key] - right[key] for key in other.questions]
        assert [*map(abs, before)] == [*map(abs, after)] and before != after
        assert sum(after) / 2000 == pytest.approx(0, abs=0.04)


def test_a_file_that_grows_is_looked_at_once_more() -> None:
    found = World(0, 0.25, 0.3, 0.4, equal_ways=True).outcomes(120, "a")
    verdict, calls, questions = run_on(found, (40, 120))
    assert (verdict, questions) == ("undecided", 120) and calls <= 120 * (2 + 8 * 4 * 0.7)
    assert run_on(World(0.45, 0.47).outcomes(100, "a"))[::2] == ("fuse", 50)  # the second look


def test_the_pairs_that_were_kept() -> None:
    found = kept()
    assert {*found} == {*PAIRS}
    for outcomes, equal in found.values():
        assert len(outcomes.questions) == 320 and 0 < equal < 1 and 2 <= len(outcomes.ways) <= 6
        assert outcomes.better() == next(iter(outcomes.alone))


def test_the_simulations_have_all_tables() -> None:
    several = simulations(Options(quick=True))
    assert [one.title for one in several] == [POWER, NULL, SIMULATED_CALLS, REAL]


def test_what_was_kept_meets_what_is_promised() -> None:
    """The figures that the documents state."""
    figures = {one.title: one.figures for one in tables("advice")}
    shares = figures[POWER]["other model 10 points worse"]
    assert [share >= least for share, least in zip(shares.values(), (43, 75, 97), strict=True)] == [True] * 3
    alarms = [one for name, one in figures[NULL].items() if name != "runs"]
    assert len(alarms) == 3 and all(share <= 4.5 for one in alarms for share in one.values())
    rows = [one for name, one in figures[SIMULATED_CALLS].items() if name != "runs"]
    assert len(rows) == 10 and all(one["calls"] < one["before"] for one in rows)
    assert all(figures[REAL][name]["swapped"] <= 5 for name in PAIRS)
    half = figures[REAL]["half"]
    assert [half[str(count)] >= least for count, least in ((100, 5), (200, 27), (400, 65))] == [True] * 3
