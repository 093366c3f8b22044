"""Trees and tuned rules on the bundled pair: from a few examples to the accuracy of fused answers.

Decision samples are collected over the API from mixed questions whose numbers the two models may have seen; a rule is
tuned and trees are trained on them. Then all answer questions with held-out numbers.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread

from benchmarks.report import HERE, Cell, Options, Table
from cosd_api import (
    Example,
    Fusion,
    RuleTuning,
    RuleVerifier,
    Samples,
    Training,
    Verifier,
    collect,
    train_tree,
    tune,
    tune_answers,
)
from cosd_api.demo.questions import DemoQuestion, sample
from cosd_api.demo.sample import MAX_TOKENS, SampleScore, Setup, measure
from cosd_api.demo.servers import bundled_pair
from cosd_api.report.heatmap import Heatmap, save_heatmaps

__all__ = ["run"]

HEATMAP = HERE.parent / "docs" / "tuning.png"
SIZES = (3, 10, 100)
KINDS = ("mixed", "sum", "difference", "capital", "currency", "symbol")
COUNT, QUICK = 200, 5
DIRECTIONS = (("sums", "facts"), ("facts", "sums"))
SEED = 11
DRAWN = (3, 10)
DRAWS = 10
ASKED = 50

ABOUT = (
    "Right answers of {count} questions of each kind, with numbers that were kept out of both models' training. A "
    "mixed question needs a fact, which only `facts` knows, and a sum, which only `sums` can add; of the other kinds "
    "each model knows its own and guesses at the rest. Trees and rule see mixed questions of other numbers: the tree "
    "of 10 examples those of the tree of 3 and seven more, the rule is tuned on all 100."
)
SAMPLES = (
    "What was learned from. Each example is one scoring request to each model, and one more to the assistant where it "
    "has to go on from inside of one of its own tokens. Held out: balanced accuracy of the decisions on examples that "
    "were left out of the training, over five folds."
)


OTHERS = (
    f"Trees of {DRAWS} draws from the 100 examples, and how many of the first {ASKED} mixed questions each gets right: "
    "the worst, the median and the best of them. Below five examples nothing is known of a tree beforehand."
)
DRAWN_COLUMNS = ["pair", "examples in a draw", "trees", "questions", "worst", "median", "best"]


@dataclass(frozen=True)
class Learned:
    """Results of training for one direction: samples and trees by the number of examples, and the tuned rule."""

    samples: Mapping[int, Samples]
    trees: Mapping[int, Training]
    tuning: RuleTuning


async def run(options: Options) -> list[Table]:
    """The section `trees`."""
    count = QUICK if options.quick else COUNT
    answers: list[list[Cell]] = []
    training: list[list[Cell]] = []
    drawn: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    with bundled_pair() as pair:
        for draft, assistant in DIRECTIONS:
            options.say(f"trees: {draft} drafting: collecting, training, tuning")
            learned = await _learn(pair[draft], pair[assistant], options)
            training += [_training_row(f"{draft}, asking {assistant}", size, learned) for size in learned.trees]
            figures[draft] = {
                "tuning": learned.tuning.model_dump(mode="json"),
                "trees": {size: found.tree.model_dump(mode="json") for size, found in learned.trees.items()},
            }
            asked = {kind: sample(kind, count, SEED) for kind in KINDS}
            for name, drafts, asks, verifier in _ways(draft, assistant, learned):
                options.say(f"trees: {draft} drafting: {name}")
                score = await _answered(pair[drafts], pair[asks], verifier, asked)
                answers.append([f"{draft}, asking {assistant}", name, *_shares(score, asked), *_cost(score, verifier)])
            options.say(f"trees: {draft} drafting: trees of other draws")
            drawn += await _drawn(f"{draft}, asking {assistant}", pair[draft], pair[assistant], learned, options)
            if draft == DIRECTIONS[0][0] and not options.quick:
                await _draw(pair[draft], pair[assistant], learned.tuning)
    kinds = [{"sum": "sums", "mixed": "mixed"}.get(kind, f"{kind}s").replace("ys", "ies") for kind in KINDS]
    columns = ["pair", "who decides", *kinds, "all", "draft's tokens kept", "asked per answer"]
    return [
        Table("Trees: right answers (llama.cpp)", columns, answers, [ABOUT.format(count=count)], figures),
        Table(
            "Trees: what they learned from",
            ["pair", "examples", "places", "agree", "draft right", "assistant right", "neither", "depth", "held out"],
            training,
            [SAMPLES],
        ),
        Table("Trees: how much it matters which examples", DRAWN_COLUMNS, drawn, [OTHERS]),
    ]


def examples(size: int) -> list[Example]:
    """Mixed questions whose numbers may have been trained on; of more, the first are the same."""
    unique = {question.prompt: question for question in sample("mixed", 2 * max(SIZES), SEED, held_out=False)}
    return [Example(prompt=one.prompt, answer=one.answer) for one in [*unique.values()][:size]]


async def _learn(draft: str, assistant: str, options: Options) -> Learned:
    whole = await collect(examples(10 if options.quick else max(SIZES)), draft=draft, assistant=assistant)
    sizes = [size for size in SIZES if size <= len(whole.examples)]
    samples = {size: whole.model_copy(update={"examples": whole.examples[:size]}) for size in sizes}
    trees = {size: await anyio.to_thread.run_sync(train_tree, samples[size]) for size in sizes}
    return Learned(samples, trees, await anyio.to_thread.run_sync(partial(tune, whole)))


async def _drawn(pair: str, draft: str, assistant: str, learned: Learned, options: Options) -> list[list[Cell]]:
    """How trees of other draws of a few examples do."""
    whole = learned.samples[max(learned.samples)]
    questions = {"mixed": sample("mixed", QUICK if options.quick else ASKED, SEED)}
    rng = random.Random(SEED)
    rows: list[list[Cell]] = []
    for size in (size for size in DRAWN if size < len(whole.examples)):
        right: list[int] = []
        for _ in range(2 if options.quick else DRAWS):
            few = whole.model_copy(update={"examples": tuple(rng.sample(whole.examples, size))})
            tree = (await anyio.to_thread.run_sync(train_tree, few)).tree
            right.append((await _answered(draft, assistant, tree, questions)).right["mixed"])
        rows.append([pair, size, len(right), len(questions["mixed"]), min(right), statistics.median(right), max(right)])
    return rows


def _ways(draft: str, assistant: str, learned: Learned) -> list[tuple[str, str, str, Verifier]]:
    """Who decides: a name, who drafts, who is asked, and the verifier."""
    never = RuleVerifier(alpha=0)
    best = learned.tuning.best
    tuned = f"tuned rule ({best.alpha:g}, {best.beta:g})"
    return [
        ("draft alone", draft, assistant, never),
        ("assistant alone", assistant, draft, never),
        ("rule (0.5, 0.5)", draft, assistant, RuleVerifier()),
        (tuned, draft, assistant, best),
        *((f"tree of {size} examples", draft, assistant, found.tree) for size, found in learned.trees.items()),
    ]


async def _answered(
    draft: str, assistant: str, verifier: Verifier, asked: Mapping[str, Sequence[DemoQuestion]]
) -> SampleScore:
    questions = [question for kind in asked for question in asked[kind]]
    async with Fusion(draft=draft, assistant=assistant, verifier=verifier) as fusion:
        return await measure(Setup(draft, assistant, fusion), questions, concurrency=4)


def _shares(score: SampleScore, asked: Mapping[str, Sequence[DemoQuestion]]) -> list[Cell]:
    return [f"{100 * score.accuracy(*kinds):.1f} %" for kinds in [*((kind,) for kind in asked), tuple(asked)]]


def _cost(score: SampleScore, verifier: Verifier) -> list[Cell]:
    if not verifier.contestable(0.0):
        return [None, None]
    return [f"{100 * score.acceptance_rate:.1f} %", f"{score.requests_per_answer:.2f}"]


def _training_row(pair: str, size: int, learned: Learned) -> list[Cell]:
    samples, found = learned.samples[size], learned.trees[size]
    counts = found.counts
    held_out = None if found.comparison is None else f"{100 * found.comparison.scores['tree'].balanced_accuracy:.1f} %"
    labels = [counts.agreeing, counts.draft_right, counts.assistant_right, counts.dropped]
    return [pair, size, samples.positions, *labels, found.depth, held_out]


async def _draw(draft: str, assistant: str, tuning: RuleTuning) -> None:
    """The paper's Figure 2 on the examples that were learned from, for the README."""
    found = await tune_answers(examples(max(SIZES)), draft=draft, assistant=assistant, max_tokens=MAX_TOKENS)
    panels = [
        Heatmap(title, one.accuracy, (one.best.alpha, one.best.beta))
        for title, one in (("right decisions", tuning), ("right answers", found))
    ]
    await anyio.to_thread.run_sync(save_heatmaps, panels, HEATMAP)
