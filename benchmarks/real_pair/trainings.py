"""Answers of all trainings together, and what was tested on them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from benchmarks.real_pair.cells import CELLS
from benchmarks.real_pair.kept import ALL, kept, read
from benchmarks.real_pair.outcomes import Answered, apart, lower_bound, outcomes_of
from benchmarks.real_pair.questions import family_of, question_of, questions
from benchmarks.real_pair.router import ROUTER, router
from benchmarks.report import Cell, Table
from cosd_api import Example
from cosd_api.comparison.contestants import ORACLE
from cosd_api.comparison.contrasts import Joint
from cosd_api.comparison.journal import GradedAnswer

TRAININGS: Mapping[int, str] = {1: "complementary", 2: "seeds", 3: "seeds"}
"""The cell that holds the answers of a training, by its seed."""
MODELS = ("draft", "assistant")
FEW = ("cosd", "cosd-0.9-1", "cosd-1-1", "average")
BOTH_WAYS = (*(name + turned for name in FEW[:3] for turned in ("", ", reversed")), FEW[3])
SWAPS = 400


def answered(cell: str, seed: int, asked: Sequence[Example], ways: Sequence[str]) -> Iterator[Answered]:
    """The answers to these questions that are kept of a cell, of the models alone and of these ways."""
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
                uncached=uncached(answer),
                seconds=answer.seconds or 0.0,
            )


def uncached(answer: GradedAnswer) -> float:
    """Tokens that were read and not cached, and written, by all servers together."""
    return sum(one.read - one.cached + one.written for one in answer.usage.values())


@cache
def all_answered() -> tuple[Answered, ...]:
    """The answers of all trainings that are kept."""
    asked = questions("test")
    return tuple(one for seed, cell in TRAININGS.items() for one in answered(cell, seed, asked, BOTH_WAYS))


def together() -> Table:
    """All trainings as one set of questions, in which a fact is one piece of evidence."""
    several = all_answered()
    first, second = ([one for one in several if one.way == name] for name in MODELS)
    theirs = {one.question: one for one in second}
    pairs = [(one, theirs[one.question]) for one in first if one.question in theirs]
    texts = {one.key: question_of(one) for one in questions("test")}
    chosen = router()
    virtual = [
        made
        for one, other in pairs
        for made in (
            replace(one if chosen(texts[one.question.split()[1]]) else other, way=ROUTER, seconds=0.0),
            replace(one if one.right else other, way=ORACLE, seconds=0.0),
        )
    ]
    return apart("All trainings together", [*several, *virtual], MODELS, (ORACLE,))


def forgetting(seeds: Sequence[int] = (1, 2, 3)) -> Table:
    """The model and the specialist that has forgotten, of all trainings together."""
    asked = CELLS["forgetting"].questions(1.0)
    several = [one for seed in seeds for one in answered("forgetting", seed, asked, BOTH_WAYS)]
    return apart("Forgetting", several, MODELS)


def by_training() -> Table:
    """For each training its questions, the models' right answers, and the difference of some ways to the better one."""
    rows: list[list[Cell]] = []
    for seed, cell in TRAININGS.items():
        several = [*answered(cell, seed, questions("test"), BOTH_WAYS)]
        outcomes = outcomes_of(several, MODELS)
        total = len(outcomes.questions)
        shares = {name: 100 * sum(mine.values()) / total for name, mine in outcomes.right.items()}
        best = max(shares[name] for name in MODELS)
        alone = (f"{shares[name]:.1f}" for name in MODELS)
        rows.append([str(seed), str(total), *alone, *(f"{shares[name] - best:+.1f}" for name in FEW)])
    return Table("Each training", ["training", "questions", *MODELS, *FEW], rows)


def tested() -> Table:
    """Non-inferiority of (0.9, 1) to (1, 1), and the share of swapped labels that give a difference."""
    several = all_answered()
    rows: list[list[Cell]] = []
    for turned in ("", ", reversed"):
        value, low = lower_bound(several, f"cosd-0.9-1{turned}", f"cosd-1-1{turned}")
        tokens = [_mean([one for one in several if one.way == f"{name}{turned}"]) for name in FEW[1:3]]
        shown = (
            f"{100 * value:+.1f}, at least {100 * low:+.1f}; {tokens[0]:.0f} uncached tokens instead of {tokens[1]:.0f}"
        )
        rows.append([f"(0.9, 1) less (1, 1){turned}", shown])
    rows.append(["swapped labels that differ at 5 %", f"{100 * swapped(several):.1f} %"])
    return Table("Tests", ["", "points"], rows)


EDGES = (0.5, 0.9, 0.97, math.inf)


def worth() -> Table:
    """What (1, 1) finds by asking everywhere: its replacements, by the draft's probability of the token replaced.

    An answer counts where the surest of its replaced tokens is: put right if the draft alone has it wrong, spoilt if
    the draft alone has it right.
    """
    rows: list[list[Cell]] = []
    found: list[tuple[float, int, bool, bool]] = []
    for seed, cell in TRAININGS.items():
        whole = read(kept(cell, seed))[ALL]
        for turned, alone in zip(("", ", reversed"), MODELS, strict=True):
            before = whole.answers_of(alone)
            for key, answer in whole.answers_of(f"cosd-1-1{turned}").items():
                probs = [one.draft_prob or 0.0 for one in answer.replaced]
                if probs and key in before:
                    found += [(one, 1, False, False) for one in probs]
                    found.append((max(probs), 0, bool(before[key].right), bool(answer.right)))
    least = 0.0
    for edge in EDGES:
        inside = [one for one in found if least <= one[0] < edge]
        mended = sum(not one[1] and not one[2] and one[3] for one in inside)
        spoilt = sum(not one[1] and one[2] and not one[3] for one in inside)
        title = f"{least:g} and more" if math.isinf(edge) else f"{least:g} to {edge:g}"
        rows.append([title, str(sum(one[1] for one in inside)), str(mended), str(spoilt)])
        least = edge
    return Table("Asking everywhere", ["draft's probability", "replaced", "put right", "spoilt"], rows)


def _mean(several: Sequence[Answered]) -> float:
    return sum(one.uncached for one in several) / len(several)


def swapped(several: Sequence[Answered], swaps: int = SWAPS) -> float:
    """The share of random exchanges, of (0.9, 1) and the draft alone in each group, with a difference at 5 %."""
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
