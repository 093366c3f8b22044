"""The qualitative claims of the two papers, each with the laboratory's measurement that decides it, and the controls.

A claim says that an effect is above a bound. The claim is *seen* if the effect is above the bound, *reversed* if the
effect is below, and *not seen* if neither can be established. It is *not tested* if no cell was run for it, or if the
runs cannot decide it. "As good as" allows a loss of 5 points.

All claims are decided together, and so are all controls. Each has a p-value from sign flips of clusters against its
bound. The tables of methods use the same test, so each contrast has only one p-value. The p-values are adjusted by
Holm's method, so that, for these weights, the chance of *any* false "seen" or "reversed" is at most about 5 %. The
interval must also exclude the bound. With several trainings, the interval covers the variation between them, but the
p-value covers only the variation between questions. Claims use the runs in which the models have the roles that the
cell names; reversed runs have lines of their own.

Some measurements cannot confirm their claim. An effect without an interval confirms no claim. "Ahead" cannot be
confirmed if even the oracle is not ahead by 5 points, "as good as" if the draft alone is already as good, and "not
ahead" if no way could be ahead. Such a claim is never seen, but it can be reversed, because a loss can be measured
without room for a gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.lab.analysis import difference, of_tasks, replaced_tasks, room, sign_flips, table, ways
from benchmarks.lab.families import independent
from benchmarks.lab.long_answers import growth, growth_p, longest
from benchmarks.lab.plan import BACK, LENGTHS
from benchmarks.lab.protocol import CELLS, HEADLINE
from benchmarks.lab.runs import BEST, Run
from benchmarks.lab.studies import STUDIES
from benchmarks.lab.ways import PRINTED_SPECULATIVE
from cosd_api.comparison.contestants import RANDOM
from cosd_api.comparison.statistics import Estimated, holm

__all__ = [
    "CLAIMS",
    "CONTROLS",
    "MARGIN",
    "Claim",
    "Decided",
    "Evidence",
    "Scenarios",
    "Verdict",
    "decided",
    "scenarios",
]

Verdict = Literal["seen", "not seen", "reversed", "not tested"]
Scenarios = Mapping[str, Sequence[Run]]
"""Runs by name: the runs of each cell, of all cells of a scenario, and of each task outside the headline. Runs with
draft and assistant swapped are separate, under the same name followed by `BACK`."""

MARGIN = 0.05
"""The loss, as a share of the questions, that "as good as" allows."""
LEVEL = 0.05
"""The accepted chance that at least one of the verdicts is false."""
POOLED = ("forgetting", "capacity", "tokenizers", "three models")
"""Scenarios whose claims are decided over all their cells; claims of other scenarios are decided cell by cell."""


def scenarios(runs: Sequence[Run]) -> Scenarios:
    """Sort runs into the groups that claims are about."""
    found: dict[str, list[Run]] = {}
    pooled = {cell.name: cell.scenario for cell in CELLS if cell.scenario in POOLED}
    names = [cell.name + back for cell in CELLS for back in ("", BACK)] + [study.name for study in STUDIES]
    for name in names:
        mine = [one for one in runs if one.cell == name]
        if headline := of_tasks(mine, HEADLINE):
            found[name] = headline
            if scenario := pooled.get(name):
                found.setdefault(scenario, []).extend(headline)
        for one in mine:
            if one.task not in HEADLINE:
                found.setdefault(f"{name}, {one.task}", []).append(one)
    return found


@dataclass(frozen=True)
class Evidence:
    """The measurement that decides a claim.

    Attributes:
        what: the measured quantity, in words.
        effect: the measured effect; None if nothing was run for it.
        bound: the bound that the effect exceeds according to the claim.
        undecidable: the reason why the runs cannot confirm the claim; empty if they can.
        p: the p-value of the effect against the bound; None if nothing was measured.
        trainings: number of independent trainings that the evidence is based on; see `families.independent`.
    """

    what: str
    effect: Estimated | None
    bound: float = 0.0
    undecidable: str = ""
    p: float | None = None
    trainings: int = 0

    @property
    def above(self) -> bool:
        """True if the effect is on the claim's side of the bound."""
        return self.effect is not None and self.effect.value > self.bound

    def verdict(self, p: float | None) -> Verdict:
        """The verdict on the claim, given its adjusted p-value."""
        if p is None or (self.undecidable and (self.above or p >= LEVEL)):
            return "not tested"
        if p >= LEVEL or (self.effect is not None and self.effect.low <= self.bound <= self.effect.high):
            return "not seen"
        return "seen" if self.above else "reversed"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        source: the paper and the table or section; for a control, the control's number.
        words: the claim, in our words.
        measure: the function that finds the evidence.
    """

    source: str
    words: str
    measure: Callable[[Scenarios], Evidence]


@dataclass(frozen=True)
class Decided:
    """One claim with its evidence.

    Attributes:
        claim: the claim.
        evidence: the measurement.
        holm: the p-value, adjusted for all claims that are decided together; None if nothing was measured.
    """

    claim: Claim
    evidence: Evidence
    holm: float | None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim."""
        return self.evidence.verdict(self.holm)

    @property
    def of_these_weights(self) -> bool:
        """True if the claim is seen or reversed on the basis of a single training, so another training may differ."""
        return self.verdict in ("seen", "reversed") and self.evidence.trainings == 1


def decided(claims: Sequence[Claim], found: Scenarios) -> list[Decided]:
    """Decide all claims together."""
    evidence = [one.measure(found) for one in claims]
    tested = [at for at, one in enumerate(evidence) if one.p is not None and not (one.undecidable and one.above)]
    adjusted = dict(zip(tested, holm([evidence[at].p or 0.0 for at in tested]), strict=True))
    return [Decided(claim, one, adjusted.get(at)) for at, (claim, one) in enumerate(zip(claims, evidence, strict=True))]


def _measured(
    what: str, runs: Sequence[Run], way: str, than: str, *, bound: float = 0.0, undecidable: str = ""
) -> Evidence:
    """The evidence on the difference in accuracy between two ways in some runs, against the bound."""
    effect = difference(runs, way, than)
    p = None if math.isnan(effect.value) else sign_flips(runs, way, than, bound)
    return Evidence(what, effect, bound, undecidable, p, independent(runs))


def _ahead(
    found: Scenarios, *, of: str, way: str, than: str, bound: float = 0.0, tasks: Sequence[str] | None = None
) -> Evidence:
    """The evidence on the difference in accuracy between two ways to answer, over all runs with one name."""
    runs = [one for one in of_tasks(found.get(of, ()), tasks) if {way, than} - {BEST} <= {*one.ways}]
    what = f"{way} less {than}"
    if not runs:
        return Evidence(what, None, bound)
    blocked = ""
    if way != "draft":
        blocked = _no_loss(runs, than, bound) if bound < 0 else _no_room(runs, than)
    return _measured(f"{what} in {_where(runs)}", runs, way, than, bound=bound, undecidable=blocked)


def _where(runs: Sequence[Run]) -> str:
    """The cells and tasks of runs, in words."""
    cells, tasks = (list(dict.fromkeys(names)) for names in ([one.cell for one in runs], [one.task for one in runs]))
    shown = "all four tasks" if {*tasks} == {*HEADLINE} else ", ".join(tasks)
    return f"{' and '.join(cells)} ({shown})"


def _no_room(runs: Sequence[Run], than: str) -> str:
    """The reason why no choice between the two models' answers could be ahead; an empty text if one could."""
    ahead = room(runs, than)
    return f"no room: the oracle is ahead by {100 * ahead:.1f} points" if ahead < MARGIN else ""


def _no_loss(runs: Sequence[Run], than: str, bound: float) -> str:
    """The reason why even the draft alone would count as "as good as" `than`; an empty text if it would not."""
    return f"the draft alone is as good as {than}" if difference(runs, "draft", than).value > bound else ""


def _not_ahead(found: Scenarios, *, of: str, way: str, than: str, bound: float = MARGIN) -> Evidence:
    """The evidence for the claim that `way` is ahead by less than `bound`, with the effect's sign reversed."""
    runs = [one for one in found.get(of, ()) if {way, than} - {BEST} <= {*one.ways}]
    what = f"{than} less {way}"
    if not runs:
        return Evidence(what, None, -bound)
    what += f" in {_where(runs)}; oracle: {100 * room(runs, than):+.1f}"
    return _measured(what, runs, than, way, bound=-bound, undecidable=_no_room(runs, than))


def _not_ahead_of_itself(found: Scenarios, *, way: str) -> Evidence:
    """The evidence on N6. There is room for a gain if the assistant helps when it reads the right question."""
    runs = [one for one in found.get("n6", ()) if way in one.ways]
    tasks = {one.task for one in runs}
    unshuffled = [one for one in found.get("c-d", ()) if way in one.ways and one.task in tasks]
    what, blocked = f"draft less {way}", ""
    if not runs:
        return Evidence(what, None, -MARGIN)
    helped = difference(unshuffled, way, "draft").value
    if not helped >= MARGIN:
        blocked = f"no room: the assistant that reads the right question adds {100 * helped:.1f} points"
    what += f" in {_where(runs)}; with the right question {100 * helped:+.1f}"
    return _measured(what, runs, "draft", way, bound=-MARGIN, undecidable=blocked)


def _better_than_a_coin(found: Scenarios, *, of: str) -> Evidence:
    """The evidence on N5, on tasks in which the rule or the coin replaced a token; on other tasks both are equal."""
    runs = [one for one in found.get(of, ()) if {"cosd", RANDOM} <= {*one.ways}]
    several = [one for one in runs if replaced_tasks([one], "cosd") or replaced_tasks([one], RANDOM)]
    return _ahead({of: several}, of=of, way="cosd", than=RANDOM)


def _best_of_grid(found: Scenarios, *, of: str) -> Evidence:
    """The evidence on the default thresholds, compared with the best other thresholds of the grid."""
    grid = [name for name in ways(found.get(of, ())) if name.startswith("rule ")]
    if "cosd" not in ways(found.get(of, ())) or not grid:
        return Evidence("cosd less the best of the grid", None, -MARGIN)
    runs = found[of]
    best = min(grid, key=lambda name: difference(runs, "cosd", name).value)
    what = f"cosd less {best}, the best of the grid"
    return _measured(what, runs, "cosd", best, bound=-MARGIN, undecidable=_no_loss(runs, best, -MARGIN))


def _latency(found: Scenarios, *, of: str) -> Evidence:
    """Speculative decoding's time per token divided by CoSD's, minus one: a ratio of medians, without an interval.

    A bootstrap over questions would not account for other load on the machine, so the ratio decides nothing.
    """
    rows = {row.way: row for row in table(found.get(of, ()))}
    what = f"ms a token, {PRINTED_SPECULATIVE} / cosd - 1"
    if not {"cosd", PRINTED_SPECULATIVE} <= rows.keys():
        return Evidence(what, None, -0.1)
    ratio = rows[PRINTED_SPECULATIVE].milliseconds / rows["cosd"].milliseconds - 1
    return Evidence(f"{what} = {ratio:+.2f}, a ratio without an interval", None, -0.1)


def _iterations(found: Scenarios) -> Evidence:
    """The growth of the answers from the shortest to the longest limit, minus the growth of the drafts per answer.

    A limit that no answer reaches says nothing about longer answers, so it is left out.
    """
    what = "growth of the answers less growth of the iterations"
    runs = {limit: found.get(f"lengths, report {limit}", ()) for limit in LENGTHS}
    reached = [limit for limit, several in runs.items() if longest(several, "cosd") >= limit]
    if len(reached) < 2:
        return Evidence(what, None, undecidable="no answer is as long as the limit" if any(runs.values()) else "")
    first, last = min(reached), max(reached)
    grown = growth(runs[first], runs[last], "cosd")
    p, trained = growth_p(runs[first], runs[last], "cosd"), independent([*runs[first], *runs[last]])
    return Evidence(f"{what}, {first} to {last} tokens", grown, p=p, trainings=trained)


def _of_pairs(cell: str) -> tuple[Claim, ...]:
    """The claims on complementary models, decided in one cell."""
    source = "CoSD, Table 2, pairs 1 and 2"
    return (
        Claim(
            source,
            "fusing complementary models is as good as the better model of each task",
            partial(_ahead, of=cell, way="cosd", than=BEST, bound=-MARGIN),
        ),
        Claim(
            source, "it is better than averaging probabilities", partial(_ahead, of=cell, way="cosd", than="average")
        ),
        Claim(
            source,
            "it is better than speculative decoding",
            partial(_ahead, of=cell, way="cosd", than=PRINTED_SPECULATIVE),
        ),
        Claim(
            source,
            "the rule is better than the tree at reasoning and code",
            partial(_ahead, of=cell, way="cosd", than="cosd-tree", tasks=("steps", "code")),
        ),
        Claim(
            source,
            "the tree is better than the rule at recall",
            partial(_ahead, of=cell, way="cosd-tree", than="cosd", tasks=("bio", "choice")),
        ),
    )


PAIRS = ("c-d", "a-b")
"""The cells for the paper's first two pairs: the headline's cell, and the cell with one domain per model."""

CLAIMS: tuple[Claim, ...] = (
    *(claim for cell in PAIRS for claim in _of_pairs(cell)),
    Claim(
        "CoSD, Table 2, pair 3",
        "a model that has forgotten is healed: fused, it is better than either",
        partial(_ahead, of="forgetting", way="cosd", than=BEST),
    ),
    Claim(
        "CoSD, Table 2, pair 4",
        "a small draft with a large assistant is as good as the assistant",
        partial(_ahead, of="capacity", way="cosd", than="assistant", bound=-MARGIN),
    ),
    Claim(
        "CoSD, Table 2, pair 4",
        "and comparable to speculative decoding",
        partial(_ahead, of="capacity", way="cosd", than=PRINTED_SPECULATIVE, bound=-MARGIN),
    ),
    Claim(
        "CoSD, Table 3",
        "with different tokenizers it is better than CharED",
        partial(_ahead, of="tokenizers", way="cosd", than="chared"),
    ),
    Claim(
        "CoSD, Table 4",
        "a tree of another task's examples is as good as one of the same task's",
        partial(_ahead, of="trees", way="cosd-tree of mixed", than="cosd-tree of its own", bound=-MARGIN),
    ),
    Claim(
        "CoSD, Table 5",
        "it is hardly slower than speculative decoding (10 % at most)",
        partial(_latency, of="latency"),
    ),
    Claim("CoSD, Table 7", "iterations grow more slowly than the length of the answer", _iterations),
    Claim(
        "CoSD, Table 8",
        "three models fused are as good as the best of them",
        partial(_ahead, of="three models", way="cosd", than=BEST, bound=-MARGIN),
    ),
    Claim(
        "CoSD, Figure 2",
        "alpha = beta = 0.5 is as good as the best other thresholds",
        partial(_best_of_grid, of="thresholds"),
    ),
    Claim(
        "CoSD, limitation 1",
        "where one model knows all that the other does, fusing gains nothing (5 points at most)",
        partial(_not_ahead, of="n3", way="cosd", than=BEST, bound=MARGIN),
    ),
    Claim(
        "CoSD, limitation 2",
        "an assistant that is sure and wrong spoils right answers of the draft",
        partial(_ahead, of="n4", way="draft", than="cosd"),
    ),
    Claim(
        "Cool-Fusion, Table 3",
        "segments chosen by perplexity are better than either model",
        partial(_ahead, of="tokenizers", way="cool", than=BEST),
    ),
    Claim(
        "Cool-Fusion, Table 3",
        "choosing whole answers by perplexity is better than either model",
        partial(_ahead, of="tokenizers", way="rerank", than=BEST),
    ),
    Claim(
        "Cool-Fusion, Table 3",
        "both together are better than segments alone",
        partial(_ahead, of="tokenizers", way="cool+rerank", than="cool"),
    ),
    Claim(
        "Cool-Fusion, Table 3",
        "both together are better than whole answers alone",
        partial(_ahead, of="tokenizers", way="cool+rerank", than="rerank"),
    ),
    Claim(
        "Cool-Fusion, Table 3",
        "common ends of words are no worse than each model's own",
        lambda _: Evidence("not run: without the models' tokenizers cool-align is cool", None),
    ),
    Claim(
        "Cool-Fusion, Tables 4 to 6",
        "over several domains it is as good as the best model of each",
        partial(_ahead, of="tokenizers", way="cool", than=BEST, bound=-MARGIN),
    ),
)
"""The claims of both papers that the laboratory can test, in the order of the papers."""


def _coins(name: str) -> tuple[Claim, ...]:
    """The claims of N5 in one cell, or in its reversal."""
    return (
        Claim("N5", "the rule is better than a coin that replaces as often", partial(_better_than_a_coin, of=name)),
        Claim("N5", "the coin does not win", partial(_not_ahead, of=name, way=RANDOM, than=BEST)),
    )


CONTROLS: tuple[Claim, ...] = (
    *(
        Claim(number, words, partial(_not_ahead, of=number.lower(), way=way, than=BEST))
        for number, words in (
            ("N2", "two trainings of one recipe: fusing gains 5 points at most"),
            ("N3", "a model and a worse one of the same data: fusing gains 5 points at most"),
            ("N4", "an assistant of whose facts 30 % are changed: fusing does not win"),
        )
        for way in ("cosd", "cosd-1-1")
    ),
    *(claim for cell in PAIRS for back in ("", BACK) for claim in _coins(cell + back)),
    *(
        Claim("N6", "an assistant that reads another question does not win", partial(_not_ahead_of_itself, way=way))
        for way in ("cosd", "cosd-1-1")
    ),
)
"""The controls that have an interval. N1, a model with itself, is decided exactly: see `analysis.itself`. `cosd-1-1`
(alpha = beta = 1) asks about every token, so it shows the assistant's full effect."""
