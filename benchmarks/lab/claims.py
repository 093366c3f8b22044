"""Qualitative claims of the two papers, each with the measurement that decides it here.

A claim is an effect that should be above a bound. It is *seen* where the whole 95 % interval is above, *reversed* where
the whole interval is below, *not seen* where the bound is inside, and *not tested* where no cell was run for it or what
was run cannot decide it. "As good as" allows a loss of 5 points.

What cannot decide: an effect without an interval; "ahead", where not even the oracle is ahead by 5 points; "as good
as", where the draft alone is; "not ahead" likewise, where nothing could be. Such a claim is never seen, but reversed it
can be: harm needs no room above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from benchmarks.lab.analysis import difference, growth, longest, of_tasks, table, ways
from benchmarks.lab.plan import LENGTHS
from benchmarks.lab.runs import Run
from benchmarks.lab.ways import PRINTED_SPECULATIVE
from cosd_api.comparison.contestants import BEST, ORACLE, RANDOM
from cosd_api.comparison.statistics import Estimated

__all__ = ["CLAIMS", "CONTROLS", "MARGIN", "Claim", "Evidence", "Scenarios", "Verdict"]

Verdict = Literal["seen", "not seen", "reversed", "not tested"]
Scenarios = Mapping[str, Sequence[Run]]
"""The runs of all cells of a scenario, of each cell, and of each task apart from the headline, by name."""

MARGIN = 0.05
"""The loss that "as good as" allows."""


@dataclass(frozen=True)
class Evidence:
    """The measurement that decides a claim.

    Attributes:
        what: what was measured, in words.
        effect: the measured effect; None where nothing was run for it.
        bound: the claim says that the effect is above it.
        undecidable: why what was run cannot bear the claim out; empty if it can.
    """

    what: str
    effect: Estimated | None
    bound: float = 0.0
    undecidable: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim."""
        if self.effect is None or math.isnan(self.effect.value):
            return "not tested"
        if self.effect.high < self.bound:
            return "reversed"
        if self.undecidable:
            return "not tested"
        return "seen" if self.effect.low > self.bound else "not seen"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        source: paper and place; for a control its number.
        words: the claim, in our words.
        measure: finds the evidence.
    """

    source: str
    words: str
    measure: Callable[[Scenarios], Evidence]


def _ahead(
    found: Scenarios, *, of: str, way: str, than: str, bound: float = 0.0, tasks: Sequence[str] | None = None
) -> Evidence:
    """The difference in accuracy between two ways to answer, over all cells of a scenario."""
    runs = [one for one in of_tasks(found.get(of, ()), tasks) if {way, than} - {BEST} <= {*one.ways}]
    what = f"{way} less {than}" + (f" on {', '.join(tasks)}" if tasks else "")
    if not runs:
        return Evidence(what, None, bound)
    blocked = ""
    if way != "draft":
        blocked = _no_loss(runs, than, bound) if bound < 0 else _no_room(runs, than)
    return Evidence(what, difference(runs, way, than), bound, blocked)


def _no_room(runs: Sequence[Run], than: str) -> str:
    """Words where no way to choose between the two models' answers could be ahead."""
    room = difference(runs, ORACLE, than).value
    return f"no room: the oracle is ahead by {100 * room:.1f} points" if room < MARGIN else ""


def _no_loss(runs: Sequence[Run], than: str, bound: float) -> str:
    """Words where the draft passes for "as good as" without any fusing."""
    return f"the draft alone is as good as {than}" if difference(runs, "draft", than).value > bound else ""


def _not_ahead(found: Scenarios, *, of: str, way: str, than: str, bound: float = MARGIN) -> Evidence:
    """The same with the sign turned: the claim is that `way` is ahead by less than `bound`."""
    one = _ahead(found, of=of, way=way, than=than)
    what = f"{than} less {way}"
    if one.effect is None:
        return Evidence(what, None, -bound)
    return Evidence(what, Estimated(-one.effect.value, -one.effect.high, -one.effect.low), -bound, one.undecidable)


def _not_ahead_of_itself(found: Scenarios, *, way: str) -> Evidence:
    """N6. There is room if the assistant that reads the right question helps, on the same tasks."""
    runs = [one for one in found.get("n6", ()) if way in one.ways]
    tasks = {one.task for one in runs}
    unshuffled = [one for one in found.get("a-b", ()) if way in one.ways and one.task in tasks]
    what, blocked = f"draft less {way}", ""
    if not runs:
        return Evidence(what, None, -MARGIN)
    helped = difference(unshuffled, way, "draft").value
    if not helped >= MARGIN:
        blocked = f"no room: the assistant that reads the right question adds {100 * helped:.1f} points"
    return Evidence(what, difference(runs, "draft", way), -MARGIN, blocked)


def _best_of_grid(found: Scenarios, *, of: str) -> Evidence:
    """The default thresholds against the best others of the grid."""
    grid = [name for name in ways(found.get(of, ())) if name.startswith("rule ")]
    if "cosd" not in ways(found.get(of, ())) or not grid:
        return Evidence("cosd less the best of the grid", None, -MARGIN)
    runs = found[of]
    best = min(grid, key=lambda name: difference(runs, "cosd", name).value)
    what = f"cosd less {best}, the best of the grid"
    return Evidence(what, difference(runs, "cosd", best), -MARGIN, _no_loss(runs, best, -MARGIN))


def _latency(found: Scenarios, *, of: str) -> Evidence:
    """Time for a token by speculative decoding, over that by CoSD, less one: a ratio of medians, without an interval.

    Questions drawn again would not tell what else the machine has done meanwhile, so it decides nothing.
    """
    rows = {row.way: row for row in table(found.get(of, ()))}
    what = f"ms a token, {PRINTED_SPECULATIVE} / cosd - 1"
    if not {"cosd", PRINTED_SPECULATIVE} <= rows.keys():
        return Evidence(what, None, -0.1)
    ratio = rows[PRINTED_SPECULATIVE].milliseconds / rows["cosd"].milliseconds - 1
    return Evidence(f"{what} = {ratio:+.2f}, a ratio without an interval", None, -0.1)


def _iterations(found: Scenarios) -> Evidence:
    """Growth of the answers from the shortest to the longest limit, less that of the number of drafts for one.

    A limit that no answer reaches tells nothing of longer answers, and is left out.
    """
    what = "growth of the answers less growth of the iterations"
    runs = {limit: found.get(f"a-b, report {limit}", ()) for limit in LENGTHS}
    reached = [limit for limit, several in runs.items() if longest(several, "cosd") >= limit]
    if len(reached) < 2:
        return Evidence(what, None, undecidable="no answer is as long as the limit" if any(runs.values()) else "")
    first, last = min(reached), max(reached)
    return Evidence(f"{what}, {first} to {last} tokens", growth(runs[first], runs[last], "cosd"))


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "CoSD, Table 2, pairs 1 and 2",
        "fusing complementary models is as good as the better model of each task",
        partial(_ahead, of="complementary", way="cosd", than=BEST, bound=-MARGIN),
    ),
    Claim(
        "CoSD, Table 2, pairs 1 and 2",
        "it is better than averaging probabilities",
        partial(_ahead, of="complementary", way="cosd", than="average"),
    ),
    Claim(
        "CoSD, Table 2, pairs 1 and 2",
        "it is better than speculative decoding",
        partial(_ahead, of="complementary", way="cosd", than=PRINTED_SPECULATIVE),
    ),
    Claim(
        "CoSD, Table 2, pairs 1 and 2",
        "the rule is better than the tree at reasoning and code",
        partial(_ahead, of="complementary", way="cosd", than="cosd-tree", tasks=("steps", "code")),
    ),
    Claim(
        "CoSD, Table 2, pairs 1 and 2",
        "the tree is better than the rule at recall",
        partial(_ahead, of="complementary", way="cosd-tree", than="cosd", tasks=("bio", "choice")),
    ),
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
        partial(_ahead, of="a-b", way="cosd-tree", than="cosd-tree, own", bound=-MARGIN),
    ),
    Claim(
        "CoSD, Table 5",
        "it is hardly slower than speculative decoding (10 % at most)",
        partial(_latency, of="a-b"),
    ),
    Claim("CoSD, Table 7", "iterations grow more slowly than the length of the answer", _iterations),
    Claim(
        "CoSD, Table 8",
        "a third model adds to two",
        partial(_ahead, of="three models", way="cosd", than="cosd of two"),
    ),
    Claim(
        "CoSD, Figure 2",
        "alpha = beta = 0.5 is as good as the best other thresholds",
        partial(_best_of_grid, of="a-b"),
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
        partial(_ahead, of="tokenizers", way="cool", than="cool-align", bound=-MARGIN),
    ),
    Claim(
        "Cool-Fusion, Tables 4 to 6",
        "over several domains it is as good as the best model of each",
        partial(_ahead, of="tokenizers", way="cool", than=BEST, bound=-MARGIN),
    ),
)
"""The claims of both papers that the laboratory can decide, in the papers' order."""

CONTROLS: tuple[Claim, ...] = (
    Claim(
        "N2",
        "two trainings of one recipe: fusing gains 5 points at most",
        partial(_not_ahead, of="n2", way="cosd", than=BEST, bound=MARGIN),
    ),
    Claim(
        "N3",
        "a model and a worse one of the same data: fusing gains 5 points at most",
        partial(_not_ahead, of="n3", way="cosd", than=BEST, bound=MARGIN),
    ),
    Claim(
        "N4",
        "an assistant of whose facts 30 % are changed: fusing does not win",
        partial(_not_ahead, of="n4", way="cosd", than=BEST, bound=MARGIN),
    ),
    Claim(
        "N5",
        "the rule is better than a coin that replaces as often",
        partial(_ahead, of="complementary", way="cosd", than=RANDOM),
    ),
    Claim("N5", "the coin does not win", partial(_not_ahead, of="complementary", way=RANDOM, than=BEST, bound=MARGIN)),
    Claim(
        "N6",
        "an assistant that reads another question does not win",
        partial(_not_ahead_of_itself, way="cosd"),
    ),
    Claim(
        "N6",
        "nor does it where it is asked about every token (alpha = beta = 1)",
        partial(_not_ahead_of_itself, way="cosd-1-1"),
    ),
)
"""The controls with an interval; N1, a model with itself, is exact: see `analysis.replaced_or_changed`."""
