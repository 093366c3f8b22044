"""The answers of all trainings together, and statistical tests on them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from benchmarks.real_pair.cells import CELLS, FEW
from benchmarks.real_pair.kept import ALL, kept, read
from benchmarks.real_pair.outcomes import Answered, apart, lower_bound, outcomes_of, uncached
from benchmarks.real_pair.questions import family_of, question_of, questions
from benchmarks.real_pair.router import ROUTER, router
from benchmarks.report import Cell, Table
from cosd_api import Example
from cosd_api.apps.comparison.contestants import ASSISTANT_ALONE, DRAFT_ALONE, ORACLE, REVERSED
from cosd_api.apps.comparison.statistics import Joint

TRAININGS: Mapping[int, str] = {1: "complementary", 2: "seeds", 3: "seeds"}
"""The cell with the answers of each training, by the training's seed."""
GEMMA: Mapping[int, str] = dict.fromkeys((1, 2, 3), "tokenizers-again")
"""The cell with the kept answers of each training of Gemma, which is fused with the first training of `products`."""
MODELS = (DRAFT_ALONE, ASSISTANT_ALONE)
BOTH_WAYS = (*(name + turned for name in FEW[:3] for turned in ("", REVERSED)), FEW[3])
SWAPS = 400
_FUSED = ("method", "baseline")


def answered(cell: str, seed: int, asked: Sequence[Example], ways: Sequence[str]) -> Iterator[Answered]:
    """Yield a cell's kept answers to the questions `asked`, from the models alone and from the given ways."""
    whole, known = read(kept(cell, seed))[ALL], {one.key: one for one in asked}
    for name in (*MODELS, *ways):
        for key, answer in whole.answers_of(name).items():
            example = known[key]
            yield Answered(
                way=name,
                question=f"{seed} {key}",
                family=family_of(example),
                group=example.group or key,
                right=bool(answer.right),
                uncached=uncached(answer.usage.values()),
                seconds=answer.seconds or 0.0,
            )


@cache
def all_answered() -> tuple[Answered, ...]:
    """The kept answers of all trainings."""
    asked = questions("test")
    return tuple(one for seed, cell in TRAININGS.items() for one in answered(cell, seed, asked, BOTH_WAYS))


def together() -> Table:
    """The table of all trainings, treated as one set of questions; each fact counts as one piece of evidence."""
    several, texts, chosen = all_answered(), {one.key: one for one in questions("test")}, router()
    routed = [
        replace(one if chosen(question_of(texts[one.question.split()[1]])) else other, way=ROUTER, seconds=0.0)
        for one, other in _pairs(several)
    ]
    return apart("All trainings together", [*several, *routed, *_ceiling(several)], MODELS, ORACLE)


def _pairs(several: Sequence[Answered]) -> Iterator[tuple[Answered, Answered]]:
    """Yield the answers of both models to each question that both have answered."""
    first, second = ({one.question: one for one in several if one.way == name} for name in MODELS)
    yield from ((one, second[key]) for key, one in first.items() if key in second)


def _ceiling(several: Sequence[Answered]) -> Iterator[Answered]:
    """Yield the right one of both models' answers to each question, or a wrong one."""
    for one, other in _pairs(several):
        yield replace(one if one.right else other, way=ORACLE, seconds=0.0)


def scenario(*runs: tuple[str, int]) -> Table:
    """The table of cells, each with the seed of its trainings, and of the ways that each of them has.

    A literal cell's ways have names of their own.
    """
    several: list[Answered] = []
    for cell, seed in runs:
        ways = [one.name for one in read(kept(cell, seed))[ALL].standings if one.answered and one.kind in _FUSED]
        found = answered(cell, seed, CELLS[cell].questions(1.0), ways)
        if CELLS[cell].unit == "literal":
            found = (replace(one, way=literal(one.way)) for one in found if one.way not in MODELS)
        several += found
    seeds = {one.question.split()[0] for one in several}
    common = set.intersection(*({one.way for one in several if one.question.split()[0] == seed} for seed in seeds))
    several = [one for one in several if one.way in common]
    return apart(runs[0][0], [*several, *_ceiling(several)], MODELS, ORACLE)


def pairs_apart() -> Table:
    """For each way: the questions that only one of both pairs has right, and on how many a model of the other pair is.

    The pair of one tokenizer is the first training's; the pair of two is that of each training of Gemma.
    """
    rows: list[list[Cell]] = []
    for way in BOTH_WAYS[:-1]:
        counts = [0, 0, 0, 0]
        for seed, cell in GEMMA.items():
            one, two = _by_question(TRAININGS[1], 1, way), _by_question(cell, seed, way)
            for key in {*one} & {*two}:
                for at, (first, second) in enumerate(((one[key], two[key]), (two[key], one[key]))):
                    if first[way] and not second[way]:
                        counts[2 * at] += 1
                        counts[2 * at + 1] += any(second[model] for model in MODELS)
        rows.append([way, *map(str, counts)])
    columns = ["", "only one tokenizer", "of these, a model of the other pair", "only two tokenizers"]
    return Table("Questions that only one of both pairs has right", [*columns, columns[2]], rows)


def _by_question(cell: str, seed: int, way: str) -> dict[str, dict[str, bool]]:
    """The grades of the models and of a way, by question and name."""
    found: dict[str, dict[str, bool]] = {}
    for one in answered(cell, seed, questions("test"), [way]):
        found.setdefault(one.question.split()[1], {})[one.way] = one.right
    return {key: mine for key, mine in found.items() if way in mine}


def literal(way: str) -> str:
    """The name of a way that judges literally by equation 3."""
    plain, turned, _ = way.partition(REVERSED)
    return f"{plain}, literal{turned}"


def by_training(trainings: Mapping[int, str] = TRAININGS, ways: Sequence[str] = FEW) -> Table:
    """For each training: questions, the models' right answers, and differences of some ways from the better model."""
    rows: list[list[Cell]] = []
    for seed, cell in trainings.items():
        several = [*answered(cell, seed, questions("test"), [*ways, *(one + REVERSED for one in ways)])]
        outcomes = outcomes_of(several, MODELS)
        total = len(outcomes.questions)
        shares = {name: 100 * sum(mine.values()) / total for name, mine in outcomes.right.items()}
        best = max(shares[name] for name in MODELS)
        alone = (f"{shares[name]:.1f}" for name in MODELS)
        rows.append([str(seed), str(total), *alone, *(f"{shares[name] - best:+.1f}" for name in ways)])
    return Table("Each training", ["training", "questions", *MODELS, *ways], rows)


def tested() -> Table:
    """Two tests: the non-inferiority of (0.9, 1) to (1, 1), and the share of significant label swaps."""
    several = all_answered()
    rows: list[list[Cell]] = []
    for turned in ("", REVERSED):
        value, low = lower_bound(several, f"cosd-0.9-1{turned}", f"cosd-1-1{turned}")
        tokens = [_mean([one for one in several if one.way == f"{name}{turned}"]) for name in FEW[1:3]]
        shown = (
            f"{100 * value:+.1f}, at least {100 * low:+.1f}; {tokens[0]:.0f} uncached tokens instead of {tokens[1]:.0f}"
        )
        rows.append([f"(0.9, 1) minus (1, 1){turned}", shown])
    rows.append(["random label swaps with a significant difference (5 %)", f"{100 * swapped(several):.1f} %"])
    return Table("Tests", ["", "points"], rows)


EDGES = (0.0, 0.5, 0.9, 0.97, math.inf)
"""The limits of the probability intervals by which replaced tokens are counted."""


def worth() -> Table:
    """The replacements by (1, 1), which asks everywhere, grouped by the draft's probability of the replaced token.

    An answer is counted in the interval of its most confident replaced token. An answer is *put right* if the draft
    alone is wrong and the fusion is right, and *spoilt* in the reverse case.
    """
    replaced, mended, spoilt = list[float](), list[float](), list[float]()
    for seed, cell in TRAININGS.items():
        whole = read(kept(cell, seed))[ALL]
        for turned, alone in zip(("", REVERSED), MODELS, strict=True):
            before = whole.answers_of(alone)
            for key, answer in whole.answers_of(f"cosd-1-1{turned}").items():
                probs = [one.draft_prob or 0.0 for one in answer.replaced]
                if not probs or key not in before:
                    continue
                replaced += probs
                if bool(before[key].right) != bool(answer.right):
                    (mended if answer.right else spoilt).append(max(probs))
    rows: list[list[Cell]] = []
    for least, edge in pairwise(EDGES):
        counts = (sum(least <= one < edge for one in several) for several in (replaced, mended, spoilt))
        title = f"{least:g} and more" if math.isinf(edge) else f"{least:g} to {edge:g}"
        rows.append([title, *map(str, counts)])
    return Table("Asking everywhere", ["draft's probability", "replaced", "put right", "spoilt"], rows)


def rival() -> Table:
    """The first training's fusions, and one model with both adapters, on the questions that all of them answered."""
    asked = questions("test")
    fused = [*answered("complementary", 1, asked, FEW)]
    merged = {"draft": "merged, each at half strength", "assistant": "merged, both at full strength"}
    one_model = [replace(one, way=merged[one.way]) for one in answered("merged", 1, asked, ())]
    return apart("The rival", [*fused, *one_model], MODELS)


def _mean(several: Sequence[Answered]) -> float:
    return sum(one.uncached for one in several) / len(several)


def swapped(several: Sequence[Answered], swaps: int = SWAPS) -> float:
    """The share of random label swaps of (0.9, 1) and the draft, by group, with a difference significant at 5 %."""
    found = [one for one in several if one.way in ("draft", "cosd-0.9-1")]
    groups = sorted({one.group for one in found})
    rng, significant = random.Random("swapped labels"), 0
    other = {"draft": "cosd-0.9-1", "cosd-0.9-1": "draft"}
    for _ in range(swaps):
        turned = {group for group in groups if rng.random() < 0.5}
        labelled = [replace(one, way=other[one.way]) if one.group in turned else one for one in found]
        p = Joint(outcomes_of(labelled, ("draft",)), ["cosd-0.9-1"]).difference("cosd-0.9-1", "draft").p
        significant += p is not None and p <= 0.05
    return significant / swaps
