"""Runs of the advice on data with a known truth: simulated worlds, and the laboratory's answers with swapped labels.

The decisions are the library's own (`cosd_api.comparison.looks`). A simulated question has an outcome, right or wrong,
for each of the two models and for each of eight ways to fuse. With a gain g and a discordance D, a way is right and the
better model wrong with probability (D + g) / 2; the reverse has probability (D - g) / 2. Latent normal variables of
each question make the ways correlate about as strongly as they do in the laboratory.
"""

from __future__ import annotations

import json
import lzma
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist, mean
from typing import Any

from benchmarks.report import HERE, Cell, Options, Table
from cosd_api.comparison.looks import LookLine, Outcomes, SequentialTest, Verdict, in_order, looked_at, schedule

__all__ = ["NULL", "POWER", "REAL", "SIMULATED_CALLS", "World", "kept", "simulations", "swapped"]

SHAPE = (1, 0.9, 0.75, 0.6, 0.4, 0.2, 0, -0.3)
"""The gains of the ways, as multiples of the best gain."""
EQUAL = 0.3
"""The share of questions for which both models write the same text, so that no way has to be asked."""
ALIKE, OTHER = 0.55, 0.5
"""Correlation of the latent variables of two ways; correlation of the variables of a way and the worse model."""
WAY = 4
"""The number of model calls that a fused answer needs; an answer by a model alone needs one."""
COUNTS = (100, 200, 400)
RUNS, FEW_RUNS, SWAPS, QUICK_RUNS = 400, 100, 1000, 2
KEPT = HERE / "results" / "laboratory" / "quick.jsonl.xz"
PAIRS = ("half", "c-d", "forgot-rather", "n2")
TASKS = ("bio", "choice", "steps", "code")
WAYS = ("cosd", "cosd-1-1", "cosd-surprise", "average", "cosd-tree", "speculative-cosd")
RELEASED = {
    (0.03, 0.1): 3426,
    (0.03, 0.25): 3406,
    (0.03, 0.4): 3387,
    (0.05, 0.1): 3438,
    (0.05, 0.25): 3421,
    (0.05, 0.4): 3404,
    (0.11, 0.25): 3440,
    (0.11, 0.4): 3435,
    (0.22, 0.25): 3440,
    (0.22, 0.4): 3440,
}
"""Mean numbers of model calls that the former procedure needed for 200 questions, by gain and discordance. That
procedure asked every way two fifths of the questions, skipped none, and tested the chosen way on the rest."""

POWER = "Advice in simulation: gains that are found"
NULL = "Advice in simulation: false alarms"
SIMULATED_CALLS = "Advice in simulation: model calls"
REAL = "Advice on kept answers of the laboratory"


@dataclass(frozen=True)
class World:
    """A world of simulated questions.

    Attributes:
        gain: gain of the best way over the better model.
        discordance: share of the questions on which the outcomes of a way and the better model differ.
        lead: lead of the better model over the worse model.
        apart: share of the questions on which the models' outcomes differ.
        equal_ways: whether all ways have the same gain, instead of the gains given by `SHAPE`.
        right: share of the questions that the better model answers right.
    """

    gain: float
    discordance: float
    lead: float = 0.1
    apart: float = 0.3
    equal_ways: bool = False
    right: float = 0.5

    def outcomes(self, count: int, seed: str) -> Outcomes:
        """The outcomes of `count` questions."""
        rng, normal = random.Random(seed), NormalDist()

        def bounds(gain: float, differ: float) -> tuple[float, float]:
            differ = max(differ, abs(gain) + 0.02)
            won, lost = (differ + gain) / 2 / (1 - self.right), (differ - gain) / 2 / self.right
            return normal.inv_cdf(won), normal.inv_cdf(lost)

        gains = [self.gain * (1 if self.equal_ways else one) for one in SHAPE]
        rng.shuffle(gains)
        ways = {f"way {at}": bounds(gain, self.discordance) for at, gain in enumerate(gains)}
        other = bounds(-self.lead, self.apart)
        right: dict[str, dict[str, bool]] = {name: {} for name in ("better", "other", *ways)}
        for at in range(count):
            key, better, common = f"{seed} {at}", rng.random() < self.right, rng.gauss()
            right["better"][key] = better

            def outcome(limits: tuple[float, float], share: float, better: bool = better, z: float = common) -> bool:
                own = math.sqrt(share) * z + math.sqrt(1 - share) * rng.gauss()
                return own >= limits[1] if better else own < limits[0]

            right["other"][key] = outcome(other, OTHER)
            for name, limits in ways.items():
                right[name][key] = outcome(limits, ALIKE)
        alone = {name: right.pop(name) for name in ("better", "other")}
        return Outcomes(alone, right)


def run_on(outcomes: Outcomes, counts: Sequence[int] = (), *, equal: float = EQUAL) -> tuple[Verdict, float, int]:
    """Advise on outcomes; the number of questions grows through `counts` until the advice is to fuse.

    Returns:
        The verdict, the number of model calls, and the number of questions.
    """
    keys, trial = outcomes.questions, SequentialTest()
    earlier: list[LookLine] = []
    verdict: Verdict = "undecided"
    for count in counts or (len(keys),):
        before = [key for one in earlier for key in one.questions]
        order, done = in_order(keys[:count], before), len(trial.seen)
        plan = schedule(count, earlier)
        verdict = looked_at(outcomes, order, plan, trial)
        last = len(before)
        for seen, (_, spend) in zip(trial.seen[done:], plan, strict=False):
            line = LookLine(questions=seen.questions[last:], ways=tuple(seen.ways), spent=spend, of=count)
            earlier.append(line)
            last = len(seen.questions)
        if verdict == "fuse":
            break
    each = len(outcomes.alone)
    calls = sum(len(one.questions) * (each + WAY * len(one.ways) * (1 - equal)) for one in earlier)
    return verdict, calls, sum(len(one.questions) for one in earlier)


def first(outcomes: Outcomes, count: int) -> Outcomes:
    """The outcomes of the first `count` questions."""
    kept = outcomes.questions[:count]
    alone, ways = (
        {name: {key: one[key] for key in kept} for name, one in several.items()}
        for several in (outcomes.alone, outcomes.ways)
    )
    return replace(outcomes, alone=alone, ways=ways)


def kept(path: Path = KEPT) -> dict[str, tuple[Outcomes, float]]:
    """For each of the laboratory's pairs, the outcomes, with the better model first, and the share of equal texts."""
    found: dict[str, dict[str, dict[str, tuple[bool, str]]]] = {}
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            one: dict[str, Any] = json.loads(line)
            if one.get("cell") not in PAIRS or one.get("task") not in TASKS or "comparison" not in one:
                continue
            of_pair = found.setdefault(one["cell"], {})
            for answer in one["comparison"]["answers"]:
                of_way = of_pair.setdefault(answer["contestant"], {})
                of_way[f"{one['task']} {answer['question']}"] = bool(answer["right"]), answer["text"]
    return {name: _outcomes(of_pair) for name, of_pair in found.items()}


def _outcomes(of_pair: Mapping[str, Mapping[str, tuple[bool, str]]]) -> tuple[Outcomes, float]:
    names = ["draft", "assistant", *(way for way in WAYS if way in of_pair)]
    keys = [key for key in of_pair["draft"] if all(key in of_pair[name] for name in names)]
    right = {name: {key: of_pair[name][key][0] for key in keys} for name in names}
    models = sorted(names[:2], key=lambda name: -sum(right[name].values()))
    equal = mean(of_pair["draft"][key][1] == of_pair["assistant"][key][1] for key in keys)
    return Outcomes({name: right[name] for name in models}, {name: right[name] for name in names[2:]}), equal


def drawn(outcomes: Outcomes, count: int, seed: str) -> Outcomes:
    """Outcomes of questions drawn with replacement; each draw counts as a separate question."""
    keys, rng = outcomes.questions, random.Random(seed)
    picked = [rng.choice(keys) for _ in range(count)]
    alone, ways = (
        {name: {f"{seed} {at}": one[key] for at, key in enumerate(picked)} for name, one in several.items()}
        for several in (outcomes.alone, outcomes.ways)
    )
    return Outcomes(alone, ways)


def swapped(outcomes: Outcomes, seed: str) -> Outcomes:
    """Exchange right and wrong for randomly chosen questions, in the outcomes of the better model and of all ways.

    For such a question, each difference between the better model and a way changes its sign. The worse model is left
    out, because its outcomes would provide additional protection against false alarms.
    """
    rng = random.Random(seed)
    better, right = next(iter(outcomes.alone.items()))
    coin = {key: rng.random() < 0.5 for key in right}

    def turned(one: Mapping[str, bool]) -> dict[str, bool]:
        return {f"{seed} {key}": one[key] != coin[key] for key in right}

    return Outcomes({better: turned(right)}, {name: turned(one) for name, one in outcomes.ways.items()})


def simulations(options: Options) -> list[Table]:
    """Return the tables of detected gains, false alarms, model calls, and the laboratory's pairs."""
    runs, few, swaps = (QUICK_RUNS,) * 3 if options.quick else (RUNS, FEW_RUNS, SWAPS)
    return [_power(options, runs, few), _null(options, runs), _calls(options, few), *_real(options, runs, swaps)]


def _share(found: Iterable[Verdict]) -> float:
    return round(100 * mean(one == "fuse" for one in found), 2)


def _percent(share: float) -> str:
    return f"{share:.1f} %"


def _power(options: Options, runs: int, few: int) -> Table:
    worlds = {"other model 10 points worse": World(0.11, 0.25), "models equally good": World(0.11, 0.3, 0, 0.4)}
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {"runs": runs}
    for name, world in worlds.items():
        options.say(f"advice: a gain of 11 points, {name}")
        found: dict[int, list[Verdict]] = {count: [] for count in COUNTS}
        for run in range(runs if world.lead else few):
            outcomes = world.outcomes(COUNTS[-1], f"power {run}")
            for count in COUNTS:
                found[count].append(run_on(first(outcomes, count))[0])
        shares = {count: _share(one) for count, one in found.items()}
        figures[name] = shares
        rows.append([name, f"{100 * world.discordance:.0f} %", *map(_percent, shares.values())])
    note = (
        f"The table shows the share of {runs} simulated runs that advise fusing, after trying eight ways to fuse. If "
        f"the models are equally good, a way must beat both of them, and there are only {few} runs. The best way gains "
        "11 points over the better model; the other ways gain less, and the last one loses."
    )
    return Table(POWER, ["", "discordance", *(f"{one} questions" for one in COUNTS)], rows, [note], figures)


def _null(options: Options, runs: int) -> Table:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {"runs": runs}
    for differ in (0.1, 0.25, 0.4):
        options.say(f"advice: no gain, discordance {differ}")
        world = World(0, differ, 0.3, 0.4, equal_ways=True)
        once: list[Verdict] = []
        grown: list[Verdict] = []
        for run in range(runs):
            outcomes = world.outcomes(COUNTS[-1], f"null {differ} {run}")
            once.append(run_on(first(outcomes, 200))[0])
            grown.append(run_on(outcomes, COUNTS)[0])
        figures[str(differ)] = {"200": _share(once), "grown": _share(grown)}
        rows.append([f"{100 * differ:.0f} %", _percent(_share(once)), _percent(_share(grown))])
    note = (
        f"The table shows the share of {runs} simulated runs that advise fusing although no way to fuse gains "
        "anything: all eight ways are as good as the better model. The worse model is 30 points behind, so the "
        "condition that a way must beat both models prevents no false alarms. In the last column, the file of "
        "questions grows from 100 to 200 and then to 400 questions, until the advice is to fuse."
    )
    return Table(NULL, ["discordance", "200 questions", "100, then 200, then 400"], rows, [note], figures)


def _calls(options: Options, runs: int) -> Table:
    options.say("advice: model calls")
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {"runs": runs}
    for (gain, differ), before in RELEASED.items():
        world = World(gain, differ)
        found = [run_on(world.outcomes(200, f"calls {gain} {differ} {run}")) for run in range(runs)]
        calls, questions = round(mean(one[1] for one in found)), round(mean(one[2] for one in found))
        shown = _share(one[0] for one in found)
        figures[f"{gain}, {differ}"] = {"calls": calls, "before": before, "fuse": shown}
        rows.append([f"{100 * gain:.0f}", f"{100 * differ:.0f} %", _percent(shown), questions, calls, before])
    note = (
        f"The figures are means of {runs} runs with 200 questions each; for {100 * EQUAL:.0f} % of the questions, the "
        f"models write the same text. Each fused answer takes {WAY} model calls. *Calls before* counts the calls by an "
        "earlier procedure, which chose the way to fuse on two fifths of the questions, tested it on the remaining "
        "questions, and did not skip equal texts."
    )
    columns = ["gain", "discordance", "fuse", "questions asked", "calls", "calls before"]
    return Table(SIMULATED_CALLS, columns, rows, [note], figures)


def _real(options: Options, runs: int, swaps: int) -> list[Table]:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {"runs": runs, "swaps": swaps}
    for name, (outcomes, equal) in kept().items():
        options.say(f"advice: the laboratory's {name}")
        shares: dict[int, float] = {}
        for count in COUNTS if name == "half" else ():
            several = [run_on(drawn(outcomes, count, f"real {name} {run}"), equal=equal) for run in range(runs)]
            shares[count] = _share(one[0] for one in several)
        null = _share(run_on(first(swapped(outcomes, f"{name} {run}"), 200))[0] for run in range(swaps))
        gain = max(
            100 * (outcomes.right(way) - outcomes.right(outcomes.better())) / len(outcomes.questions)
            for way in outcomes.ways
        )
        figures[name] = {"swapped": null, "equal": round(equal, 3), "gain": round(gain, 1), **shares}
        cells = [_percent(shares[count]) if count in shares else None for count in COUNTS]
        rows.append([name, f"{100 * equal:.0f} %", f"{gain:+.1f}", *cells, _percent(null)])
    note = (
        f"The table shows the share of {runs} runs that advise fusing. The questions of each run are drawn with "
        "replacement from the kept answers of a pair, for which there are two to six ways to fuse. *Labels swapped* is "
        f"the same share in {swaps} runs with 200 questions, in which no way can gain anything: for each question, a "
        "coin toss decides whether the differences between the better model and the ways change their sign."
    )
    columns = ["pair", "equal texts", "best gain", *(f"{one} questions" for one in COUNTS), "labels swapped"]
    return [Table(REAL, columns, rows, [note], figures)]
