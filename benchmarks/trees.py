"""Trees and tuned rules for two bundled models, learned from a few examples, and the accuracy of their fused answers.

Decision samples are collected over the API from mixed questions whose numbers the two models may have seen. A rule is
tuned and trees are trained on these samples. Then each verifier is used to answer questions with held-out numbers.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread

from benchmarks.report import HERE, Cell, Options, Table
from cosd_api import Example, Fusion, RuleVerifier, Samples, TreeVerifier, collect, train_tree, tune, tune_answers
from cosd_api.demo.questions import DemoQuestion, sample
from cosd_api.demo.sample import MAX_TOKENS, SampleScore, Setup, measure
from cosd_api.demo.servers import bundled_pair
from cosd_api.extend import Verifier
from cosd_api.report.heatmap import Heatmap, save_heatmaps
from cosd_api.training import RuleTuning, Training
from cosd_api.training.evaluation import places_of
from cosd_api.training.fit import nodes_of

__all__ = ["run"]

HEATMAP = HERE.parent / "docs" / "tuning.png"
SIZES = (3, 10, 100)
FEW = 3
NUMBERS, ABOUT_FACTS = ("sum", "difference"), ("capital", "currency", "symbol")
OTHER_KINDS = (*NUMBERS, *ABOUT_FACTS)
KINDS = ("mixed", *OTHER_KINDS)
COUNT, QUICK = 200, 5
DIRECTIONS = (("sums", "facts"), ("facts", "sums"))
SEED = 11
DRAWN = ((FEW, "mixed"), (10, "mixed"), (FEW, "other"))
MOST_DRAWS = 100
DRAWS = 10
ASKED = 50

PAPER = (
    "*The paper's tree* is grown with scikit-learn's defaults: it is also trained on the places where both models "
    "agree, with the draft's label; it uses no class weights and no depth limit, and it chooses at random between the "
    "probabilities *p* and *q* if both split the samples equally well."
)
ABOUT = (
    "The table shows how many of {count} questions of each kind were answered correctly; the questions contain "
    "numbers that neither model saw in training. A mixed question needs a fact, which only `facts` knows, and a sum, "
    "which only `sums` can calculate. A question of any other kind needs the knowledge of only one of the two models;"
    " the other one has learned only that it does not know the answer. The trees and the rule learn from mixed "
    "questions with different numbers: the tree of 10 examples learns from the three examples of the first tree and "
    "from seven more, and the rule learns from all 100. *Other* examples are three questions of the kinds that one "
    "model can answer. These examples are outside the distribution of the mixed questions, just as the paper's three "
    "examples are outside the distribution of its tests. {PAPER}"
)
SAMPLES = (
    "The table counts the samples that the trees learned from. Each example requires one scoring request to each "
    "model, and another one to the assistant if the assistant has to continue from inside one of its own tokens. *Held "
    "out* is the balanced accuracy of the tree's decisions in five-fold cross-validation: the decisions concern "
    "examples on which the tree was not trained."
)


OTHERS = (
    f"Training examples are drawn {DRAWS} times from a set of 100, and a tree is trained on each draw. The table shows "
    f"how many of the first {ASKED} mixed questions the worst, the median and the best of these trees get right. With "
    "fewer than five examples, the quality of a tree cannot be estimated in advance. *Other* examples are questions "
    "that one model can answer: each draw contains one calculation, one question about a fact, and a third question of "
    "either kind. A draw is replaced if it lacks a place at which only the draft is right, or a place at which only "
    f"the assistant is right. {PAPER}"
)
DRAWN_COLUMNS = ["pair", "tree", "examples", "draws", "questions", "worst", "median", "best"]


@dataclass(frozen=True)
class Learned:
    """Results of training for one direction.

    Attributes:
        samples: samples of mixed questions, by the number of examples.
        trees: trees learned from these samples, by the number of examples.
        papers: the paper's trees learned from the same samples.
        others: samples of the other kinds of questions, by kind.
        tuning: the tuned rule.
    """

    samples: Mapping[int, Samples]
    trees: Mapping[int, Training]
    papers: Mapping[int, TreeVerifier]
    others: Mapping[str, Samples]
    tuning: RuleTuning


async def run(options: Options) -> list[Table]:
    """Run the section `trees`."""
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
    """Mixed questions whose numbers may occur in the models' training; a larger `size` only adds questions."""
    return _examples("mixed", size)


def _examples(kind: str, size: int) -> list[Example]:
    unique = {question.prompt: question for question in sample(kind, 2 * max(SIZES), SEED, held_out=False)}
    return [Example(prompt=one.prompt, answer=one.answer) for one in [*unique.values()][:size]]


async def _learn(draft: str, assistant: str, options: Options) -> Learned:
    count = 10 if options.quick else max(SIZES)
    whole = await collect(examples(count), draft=draft, assistant=assistant)
    sizes = [size for size in SIZES if size <= len(whole.examples)]
    samples = {size: whole.model_copy(update={"examples": whole.examples[:size]}) for size in sizes}
    trees = {size: await anyio.to_thread.run_sync(train_tree, samples[size]) for size in sizes}
    papers = {size: await anyio.to_thread.run_sync(papers_tree, samples[size]) for size in sizes}
    others = {
        kind: await collect(_examples(kind, count // len(OTHER_KINDS)), draft=draft, assistant=assistant)
        for kind in OTHER_KINDS
    }
    return Learned(samples, trees, papers, others, await anyio.to_thread.run_sync(partial(tune, whole)))


def our_tree(samples: Samples) -> TreeVerifier:
    """A tree with the library's defaults."""
    return train_tree(samples).tree


def papers_tree(samples: Samples) -> TreeVerifier:
    """The tree that the paper describes, grown with scikit-learn's defaults."""
    from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415 - a long import

    places = places_of(samples, keep_agreeing=True)
    classifier = DecisionTreeClassifier(random_state=0).fit(
        [(at.p, at.q) for at in places], [at.label for at in places]
    )
    return TreeVerifier(nodes=nodes_of(classifier))


def _from_mixed(learned: Learned, size: int, rng: random.Random) -> Samples:
    """Samples of randomly drawn mixed questions."""
    whole = learned.samples[max(learned.samples)]
    return whole.model_copy(update={"examples": tuple(rng.sample(whole.examples, size))})


def _from_others(learned: Learned, size: int, rng: random.Random) -> Samples:
    """Samples of questions of single kinds: one with a number, one about a fact, and the rest of either kind."""
    kinds = [rng.choice(NUMBERS), rng.choice(ABOUT_FACTS), *rng.choices(OTHER_KINDS, k=size - 2)]
    found = {one.example.key: one for kind in kinds for one in [rng.choice(learned.others[kind].examples)]}
    return learned.others[kinds[0]].model_copy(update={"examples": tuple(found.values())})


SOURCES: Mapping[str, Callable[[Learned, int, random.Random], Samples]] = {"mixed": _from_mixed, "other": _from_others}
TREES: Mapping[str, Callable[[Samples], TreeVerifier]] = {"tree": our_tree, "the paper's tree": papers_tree}


def _drawings(source: str, size: int, learned: Learned) -> Iterator[Samples]:
    """Yield draws of a few examples; skip draws in which one of the two decisions never occurs."""
    rng = random.Random(f"{SEED}/{size}/{source}")
    for _ in range(MOST_DRAWS):
        few = SOURCES[source](learned, size, rng)
        labels = {one.label for found in few.examples for one in found.samples if not one.agreed}
        if len(few.examples) == size and {0, 1} <= labels:
            yield few
    raise RuntimeError(f"hardly any draw of {size} {source} examples has a place for both answers")


async def _drawn(pair: str, draft: str, assistant: str, learned: Learned, options: Options) -> list[list[Cell]]:
    """The table rows of trees that are trained on several draws of a few examples."""
    questions = {"mixed": sample("mixed", QUICK if options.quick else ASKED, SEED)}
    rows: list[list[Cell]] = []
    for size, source in DRAWN:
        if size >= max(learned.samples):
            continue
        drawings = [*itertools.islice(_drawings(source, size, learned), 2 if options.quick else DRAWS)]
        for name, train in TREES.items():
            options.say(f"trees: {draft} drafting: {len(drawings)} x {name} of {size} {source} examples")
            trees = [await anyio.to_thread.run_sync(train, few) for few in drawings]
            right = [(await _answered(draft, assistant, tree, questions)).right["mixed"] for tree in trees]
            spread = [min(right), statistics.median(right), max(right)]
            rows.append([pair, name, f"{size} {source}", len(right), len(questions["mixed"]), *spread])
    return rows


def _ways(draft: str, assistant: str, learned: Learned) -> list[tuple[str, str, str, Verifier]]:
    """The compared models and verifiers: for each, a name, the draft, the assistant, and the verifier."""
    never = RuleVerifier(alpha=0)
    best = learned.tuning.best
    other = next(_drawings("other", FEW, learned))
    tuned = f"tuned rule ({best.alpha:g}, {best.beta:g})"
    return [
        ("draft alone", draft, assistant, never),
        ("assistant alone", assistant, draft, never),
        ("rule (0.5, 0.5)", draft, assistant, RuleVerifier.paper()),
        (tuned, draft, assistant, best),
        *((f"tree of {size} examples", draft, assistant, found.tree) for size, found in learned.trees.items()),
        *((f"the paper's tree of {size} examples", draft, assistant, tree) for size, tree in learned.papers.items()),
        *((f"{name} of {FEW} other examples", draft, assistant, train(other)) for name, train in TREES.items()),
    ]


async def _answered(
    draft: str, assistant: str, verifier: Verifier, asked: Mapping[str, Sequence[DemoQuestion]]
) -> SampleScore:
    questions = [question for kind in asked for question in asked[kind]]
    async with Fusion(draft=draft, assistant=assistant, verifier=verifier) as fusion:
        return await measure(Setup(draft, (assistant,), fusion), questions, concurrency=4)


def _shares(score: SampleScore, asked: Mapping[str, Sequence[DemoQuestion]]) -> list[Cell]:
    return [f"{100 * score.accuracy(*kinds):.1f} %" for kinds in [*((kind,) for kind in asked), tuple(asked)]]


def _cost(score: SampleScore, verifier: Verifier) -> list[Cell]:
    if verifier == RuleVerifier(alpha=0):
        return [None, None]
    return [f"{100 * score.acceptance_rate:.1f} %", f"{score.requests_per_answer:.2f}"]


def _training_row(pair: str, size: int, learned: Learned) -> list[Cell]:
    samples, found = learned.samples[size], learned.trees[size]
    counts = found.counts
    held_out = None if found.comparison is None else f"{100 * found.comparison.scores['tree'].balanced_accuracy:.1f} %"
    labels = [counts.agreeing, counts.draft_right, counts.assistant_right, counts.dropped]
    return [pair, size, samples.positions, *labels, found.depth, held_out]


async def _draw(draft: str, assistant: str, tuning: RuleTuning) -> None:
    """Draw the equivalent of the paper's Figure 2 for the training examples."""
    found = await tune_answers(examples(max(SIZES)), draft=draft, assistant=assistant, max_tokens=MAX_TOKENS)
    panels = [
        Heatmap(title, one.accuracy, (one.best.alpha, one.best.beta))
        for title, one in (("right decisions", tuning), ("right answers", found))
    ]
    await anyio.to_thread.run_sync(save_heatmaps, panels, HEATMAP)
