"""Training of the decision tree `T(p, q)` (section 3.2 of the CoSD paper).

scikit-learn fits the tree. Each split minimises the log loss, the loss of the paper's equation 7. The trained
`TreeVerifier` works without scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import indent
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from cosd_api import SettingError, TreeVerifier, __version__
from cosd_api.apps.training.dataset import Samples
from cosd_api.apps.training.evaluation import (
    ALWAYS_ASSISTANT,
    ALWAYS_DRAFT,
    BASELINES,
    DEFAULT_RULE,
    PAPER_RULE,
    TREE,
    TUNED_RULE,
    Decide,
    Fit,
    HeldOutScores,
    LabelledPlace,
    Score,
    held_out,
    lacking,
    places_of,
)
from cosd_api.common.wording import counted, paragraph, with_notes
from cosd_api.extend import check_count
from cosd_api.types import Endpoint
from cosd_api.verification import TreeNode

ClassWeight = Literal["balanced"]

DEEPEST = 12
"""Maximum depth of a tree. `TreeVerifier` still accepts a full tree of this depth, which has 4,096 leaves."""
_CRITERION = "log_loss"
_DEPTHS = (1, 2, 3, 4)
_LEAVES = (20, 5, 1)
# Limits for too few examples. A tree of depth 2 can express the rule: is p low, and is q high?
_DEPTH, _LEAF = 2, 1
_LARGEST_SEED = 2**32 - 1  # the largest that NumPy accepts
_LARGEST_SHOWN = 31  # maximum number of nodes of a tree that is shown: a full tree of depth 4
_SURE = 0.5  # a model counts as confident of a word if it gives the word a higher probability than this


class TrainingCounts(BaseModel):
    """Counts of the data that a tree was trained on.

    Attributes:
        examples: number of examples, including examples without a labelled place.
        draft_right: number of places where the models differ and the draft is right (label 0).
        assistant_right: number of places where the models differ and the assistant is right (label 1).
        agreeing: number of places where both models would have written the same text.
        dropped: number of places where the models differ and neither is right.
        skipped: number of places that could not be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int
    draft_right: int
    assistant_right: int
    agreeing: int
    dropped: int
    skipped: int

    @classmethod
    def of(cls, samples: Samples, places: Sequence[LabelledPlace]) -> TrainingCounts:
        """Count the places of samples, given the labelled ones."""
        labels = [place.label for place in places if not place.agreed]
        return cls(
            examples=len(samples.examples),
            draft_right=labels.count(0),
            assistant_right=labels.count(1),
            agreeing=samples.agreeing,
            dropped=samples.dropped,
            skipped=samples.skipped,
        )

    def __str__(self) -> str:
        return (
            f"{counted(self.examples, 'example')}: {counted(self.draft_right, 'place')} where the draft is right and "
            f"the assistant is not, {self.assistant_right} the other way round; {self.agreeing} where they agree, "
            f"{self.dropped} where neither is right, {self.skipped} that could not be judged"
        )


class Training(BaseModel):
    """A trained tree and the evidence for it; `str()` gives a report.

    Attributes:
        tree: the verifier, for `Fusion(..., verifier=training.tree)` or `training.tree.save(path)`.
        depth: maximum depth; the tree may be shallower.
        min_leaf: minimum number of places in each leaf.
        chosen: whether a limit was chosen on held-out examples; False if both limits were given as arguments, or if
            there were too few examples.
        counts: counts of the data.
        comparison: scores of a tree, the rules and the constants on held-out examples; None if there were too few
            examples. Each fold trains its own tree, so the scores measure the method of training, not `tree` itself.
        warnings: reasons to doubt the tree.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tree: TreeVerifier
    depth: int
    min_leaf: int
    chosen: bool
    counts: TrainingCounts
    comparison: HeldOutScores | None
    warnings: tuple[str, ...] = ()

    @property
    def unsafe(self) -> str | None:
        """A reason not to use the tree, if it wrongly replaces words of which the draft is confident; else None."""
        return replaces_the_sure(self.tree)

    def report(self) -> str:
        """Describe the data, the tree and the comparison. `str()` adds the warnings."""
        nodes = len(self.tree.nodes)
        outline = f"{nodes} nodes, too many to show" if nodes > _LARGEST_SHOWN else self.tree.outline()
        chosen = " (chosen on held-out examples)" if self.chosen else ""
        limits = f"depth of at most {self.depth}, at least {counted(self.min_leaf, 'place')} to a leaf{chosen}"
        parts = [paragraph(f"{self.counts}."), paragraph(f"Tree, {limits}:"), indent(outline, "  ")]
        return "\n\n".join([*parts, *([str(self.comparison)] if self.comparison is not None else [])])

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)


def train_tree(
    samples: Samples,
    *,
    depth: int | None = None,
    min_leaf: int | None = None,
    keep_agreeing: bool = False,
    class_weight: ClassWeight | None = "balanced",
    folds: int = 5,
    seed: int = 0,
) -> Training:
    """Train a decision tree on `[p, q]` that chooses between the draft's word and the assistant's.

    Three examples are enough, as in the paper. If at least five examples have a place where exactly one model is right,
    depth and leaf size are chosen by cross-validation over whole examples, and the tree is compared with the rule on
    held-out examples. With fewer examples, the depth is 2, and the accuracy of the tree is unknown. A tree on `p` alone
    is trained, too, and is taken if it is as good and as simple. The same samples, in any order, and the same arguments
    produce the same tree. No requests are sent.

    Args:
        samples: samples from `collect`.
        depth: maximum depth of the tree, up to 12; if None, it is chosen automatically.
        min_leaf: minimum number of places in each leaf; if None, it is chosen automatically.
        keep_agreeing: also train on places where both models are right, with label 0, as the paper describes. A fusion
            has nothing to decide at such places, and the comparison ignores them.
        class_weight: `"balanced"` gives the places where the draft is right the same total weight as the places where
            the assistant is right, and chooses depth and leaf size by balanced accuracy. None gives every place the
            same weight and chooses depth and leaf size by accuracy.
        folds: number of folds of the cross-validation.
        seed: seed of the folds and of scikit-learn.

    Raises:
        SettingError: the samples contain nothing to learn from, or an argument is invalid.
    """
    trees = TreeFit(depth, min_leaf, class_weight, folds, seed)
    samples = check_samples(samples)
    places = places_of(samples, keep_agreeing=keep_agreeing)
    counts = TrainingCounts.of(samples, places)
    _check_labels(counts, places)
    fitted = trees.fit(places)
    comparison = compare(places, trees)
    origin = origin_of(
        samples,
        samples.digest,
        counts,
        features=["p", "q"],
        alternative_features=["p"],
        criterion=_CRITERION,
        depth=fitted.depth,
        min_leaf=fitted.min_leaf,
        keep_agreeing=keep_agreeing,
        class_weight=class_weight,
        folds=folds,
        seed=seed,
    )
    tree = TreeVerifier(nodes=fitted.nodes, contexts=samples.contexts, trained_on=origin)
    return Training(
        tree=tree,
        depth=fitted.depth,
        min_leaf=fitted.min_leaf,
        chosen=fitted.chosen,
        counts=counts,
        comparison=comparison,
        warnings=(
            *_about_data(places, counts),
            *_about_tree(tree),
            *_about_worth(comparison, trees),
        ),
    )


def compare(places: Sequence[LabelledPlace], trees: TreeFit) -> HeldOutScores | None:
    """Compare the constants, the default rule, the paper's rule, a tuned rule and a tree on the same held-out examples.

    Each fold chooses the depth and leaf size of its tree on its own training places. Returns None if there are too few
    places (`lacking` returns the reason).
    """

    def fit_tree(train: Sequence[LabelledPlace]) -> Decide:
        return TreeVerifier(nodes=trees.fit(train).nodes).replaces

    return held_out(places, {**BASELINES, TREE: fit_tree}, folds=trees.folds, seed=trees.seed)


# Fitting.


@dataclass(frozen=True, slots=True)
class FittedTree:
    """A tree fitted to places.

    Attributes:
        nodes: the nodes, for `TreeVerifier`.
        depth: maximum depth.
        min_leaf: minimum number of places in each leaf.
        chosen: whether `depth` or `min_leaf` was chosen on held-out examples.
    """

    nodes: tuple[TreeNode, ...]
    depth: int
    min_leaf: int
    chosen: bool


@dataclass(frozen=True, slots=True)
class TreeFit:
    """Settings for fitting a tree to places; the fields are arguments of `train_tree`.

    Raises:
        SettingError: an argument is invalid.
    """

    depth: int | None = None
    min_leaf: int | None = None
    class_weight: ClassWeight | None = "balanced"
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_folds(self.folds, self.seed)
        if self.depth is not None and check_count("depth", self.depth) > DEEPEST:
            raise SettingError(f"depth must be at most {DEEPEST}, not {self.depth}")
        if self.min_leaf is not None:
            check_count("min_leaf", self.min_leaf)
        if self.class_weight not in ("balanced", None):
            raise SettingError(f"class_weight must be 'balanced' or None, not {self.class_weight!r}")

    def measure(self, score: Score) -> float:
        """Return the accuracy by which depth and leaf size are chosen.

        This is the balanced accuracy, unless `class_weight` is None.
        """
        return score.accuracy if self.class_weight is None else score.balanced_accuracy

    def fit(self, places: Sequence[LabelledPlace]) -> FittedTree:
        """Fit a tree.

        Unless given, depth and leaf size are chosen by the tree's decisions on held-out examples; if several limits are
        equally good, the simplest tree is chosen. With too few examples, the depth is 2, and a leaf may have any size.
        """
        limits = {
            f"{depth} {leaf}": (depth, leaf)  # the simplest trees come first
            for depth in ([self.depth] if self.depth else _DEPTHS)
            for leaf in ([self.min_leaf] if self.min_leaf else _LEAVES)
        }
        methods = {name: self._method(*pair) for name, pair in limits.items()}
        comparison = held_out(places, methods, folds=self.folds, seed=self.seed) if len(limits) > 1 else None
        if comparison is None:
            depth, leaf = self.depth or _DEPTH, self.min_leaf or _LEAF
        else:
            scores = comparison.scores
            depth, leaf = limits[max(scores, key=lambda name: self.measure(scores[name]))]
        return FittedTree(self._nodes(places, depth, leaf), depth, leaf, comparison is not None)

    def _method(self, depth: int, leaf: int) -> Fit:
        return lambda places: TreeVerifier(nodes=self._nodes(places, depth, leaf)).replaces

    def _nodes(self, places: Sequence[LabelledPlace], depth: int, leaf: int) -> tuple[TreeNode, ...]:
        """Fit a tree on p and q and a tree on p alone; return the nodes of the one that is right at more of the places.

        If both are equally good, the tree with fewer nodes is returned, and then the tree on p alone. With few places,
        p and q often separate the labels equally well, and scikit-learn picks one of them at random. A tree that tests
        only q is costly, because the assistant must be asked at nearly every token, even if the draft is confident. It
        also accepts confidently wrong words of the assistant.
        """
        import numpy as np  # noqa: PLC0415 - an extra, and slow to load

        features = np.array([(place.p, place.q) for place in places], dtype=np.float32)
        labels = np.array([place.label for place in places])
        weights = np.ones(len(labels)) if self.class_weight is None else 1 / np.bincount(labels)[labels]

        def rank(one: Any) -> tuple[float, int]:
            answers = one.classes_[one.tree_.predict(features).argmax(axis=1)]  # twice as fast as `one.score`
            return -float(weights[answers == labels].sum()), one.tree_.node_count

        p_only = features * np.array([1, 0], dtype=np.float32)  # q becomes constant, so the tree cannot use it
        return nodes_of(min((self._classifier(shown, labels, depth, leaf) for shown in (p_only, features)), key=rank))

    def _classifier(self, features: Any, labels: Any, depth: int, leaf: int) -> Any:
        import sklearn  # noqa: PLC0415
        from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415

        # Without these settings, scikit-learn spends most of the time on checking arguments.
        with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            classifier = DecisionTreeClassifier(
                criterion=_CRITERION,
                max_depth=depth,
                min_samples_leaf=leaf,
                class_weight=self.class_weight,
                random_state=self.seed,
            )
            return classifier.fit(features, labels)


def nodes_of(classifier: Any) -> tuple[TreeNode, ...]:  # Any: scikit-learn has no types
    """Convert a fitted `DecisionTreeClassifier` on `[p, q]` to nodes, root first.

    Each leaf answers as scikit-learn's `predict` does: with the class that has the greatest weight, or the first of
    several equal ones. If all leaves below a node have the same answer, the node becomes a leaf.
    """
    tree = classifier.tree_
    lefts: list[int] = tree.children_left.tolist()
    rights: list[int] = tree.children_right.tolist()
    features: list[int] = tree.feature.tolist()
    thresholds: list[float] = tree.threshold.tolist()
    classes: list[int] = classifier.classes_.tolist()
    #: The common answer of all leaves below each node; None if they differ. Children come after their parents.
    answers: list[int | None] = [classes[column] for column in tree.value[:, 0, :].argmax(axis=1).tolist()]
    for at in reversed(range(len(lefts))):
        if lefts[at] >= 0:
            left = answers[lefts[at]]
            answers[at] = left if left == answers[rights[at]] else None
    nodes: list[dict[str, object]] = []

    def put(at: int) -> int:
        nodes.append({"value": answers[at]})
        index = len(nodes) - 1
        if answers[at] is None:
            question = {"feature": ("p", "q")[features[at]], "threshold": thresholds[at]}
            nodes[index] = {**question, "left": put(lefts[at]), "right": put(rights[at])}
        return index

    put(0)
    return tuple(map(TreeNode.model_validate, nodes))


# The data.


def check_folds(folds: int, seed: int) -> None:
    """Check the number of folds and the seed.

    Raises:
        SettingError: one of them is invalid.
    """
    check_count("folds", folds, least=2)
    if check_count("seed", seed, least=0) > _LARGEST_SEED:
        raise SettingError(f"seed must be at most {_LARGEST_SEED}, not {seed}")


def check_samples(samples: Samples) -> Samples:
    """Check a data set; sort its examples, so that the order of collection does not matter.

    Raises:
        SettingError: `samples` is of another type, or there are no examples.
    """
    if not isinstance(samples, Samples):
        raise SettingError("samples must be the result of collect() or Samples.load()")
    if not samples.examples:
        raise SettingError("there is nothing to train on: the samples have no examples")
    # `collect` stores examples in the order in which they finish, but a tree must not depend on timing.
    return samples.model_copy(update={"examples": tuple(sorted(samples.examples, key=lambda one: one.example.key))})


def _check_labels(counts: TrainingCounts, places: Sequence[LabelledPlace]) -> None:
    right = counts.draft_right + counts.assistant_right
    if not right + counts.agreeing + counts.dropped:
        raise SettingError(
            f"there is nothing to train on: no place of the {counts.examples} examples could be judged "
            f"({counts.skipped} were skipped)"
        )
    if not right:
        words = f"the two models agree at {counts.agreeing} places, and at {counts.dropped} neither is right"
        more = "add examples that one of them can answer and the other cannot"
        raise SettingError("; ".join([f"there is nothing to decide: {words}", more, *about_dropped(0, counts.dropped)]))
    if len({place.label for place in places}) == 1:  # with `keep_agreeing`, places where both agree count as label 0
        raise SettingError(one_sided(counts.draft_right, counts.assistant_right))


def origin_of(samples: Samples, digest: str, counts: BaseModel, **more: JsonValue) -> dict[str, JsonValue]:
    """Describe a training for the file of its result: the models, the data, the counts, `more`, and the versions.

    The models' addresses, which may be confidential, are left out.
    """
    import sklearn  # noqa: PLC0415

    pair: JsonValue = {"draft": _model(samples.draft), "assistant": _model(samples.assistant), "unit": samples.unit}
    versions: dict[str, JsonValue] = {"scikit_learn": str(sklearn.__version__), "library_version": __version__}
    return {"pairs": [pair], "data": digest, "counts": counts.model_dump(), **more, **versions}


def _model(endpoint: Endpoint | None) -> JsonValue:
    return None if endpoint is None else {"engine": endpoint.engine, "model": endpoint.model}


# Warnings.


def about_dropped(labelled: int, dropped: int) -> list[str]:
    """Return a warning if neither model is right at more places than are labelled; else an empty list."""
    if dropped <= labelled:
        return []
    where = f"at {dropped} of {counted(labelled + dropped, 'place')} where the models differ neither is right"
    return [f"{where}: check that the answers are written as a model would write them, leading space included"]


def one_sided(draft_right: int, assistant_right: int) -> str | None:
    """Return a warning if all labels are equal; None if both labels occur, or neither."""
    right = draft_right + assistant_right
    if not right or (draft_right and assistant_right):
        return None
    samples = "the only labelled sample is" if right == 1 else f"all {right} labelled samples are"
    mine, other = ("draft", "assistant") if draft_right else ("assistant", "draft")
    return (
        f"{samples} the {mine}'s: the {other} was never right where the {mine} was wrong; "
        f"add examples that the {other} can answer and the {mine} cannot (if there are none, the {mine} alone is "
        "as good)"
    )


def _about_data(places: Sequence[LabelledPlace], counts: TrainingCounts) -> list[str]:
    found = about_dropped(counts.draft_right + counts.assistant_right, counts.dropped)
    if (lack := lacking(places)) is not None:
        found.append(f"the tree's accuracy is unknown: {lack}")
    return found


def _about_tree(tree: TreeVerifier) -> list[str]:
    if (value := tree.nodes[0].value) is None:
        return []
    does = "takes the assistant's word" if value else "keeps the draft's word, so that the assistant is never asked"
    return [f"the tree found no way to tell the two apart: it always {does}"]


def _about_worth(comparison: HeldOutScores | None, trees: TreeFit) -> list[str]:
    """Return warnings if a rule or a constant does at least as well as the tree on held-out examples."""
    if comparison is None:
        return []
    scores, mine = comparison.scores, comparison.scores[TREE]
    found: list[str] = []
    rule = max((DEFAULT_RULE, PAPER_RULE, TUNED_RULE), key=lambda name: trees.measure(scores[name]))
    if trees.measure(mine) <= trees.measure(scores[rule]):
        name = "balanced accuracy" if trees.class_weight else "plain accuracy"
        found.append(
            f"on held-out examples the tree has a {name} of {trees.measure(mine):.1%}, and the {rule}, which is "
            f"simpler, {trees.measure(scores[rule]):.1%}"
        )
    constant = max((ALWAYS_DRAFT, ALWAYS_ASSISTANT), key=lambda name: scores[name].accuracy)
    if mine.accuracy <= scores[constant].accuracy:
        who = constant.removeprefix("always ")
        found.append(
            f"on held-out examples the {who} alone is right at {scores[constant].accuracy:.1%} of the places, and the "
            f"tree's choice at {mine.accuracy:.1%}"
        )
    return found


def replaces_the_sure(tree: TreeVerifier) -> str | None:
    """Describe a case in which a tree wrongly replaces a word of which the draft is confident; None if there is none.

    A model is confident of a word if the word's probability is above 0.5. A replacement counts as wrong in two cases:
    the assistant is not confident of its own word; or, with the same q, the tree would keep a less probable word of the
    draft.
    """
    ps, qs = (_between_thresholds(tree, feature) for feature in ("p", "q"))
    for q in qs:
        kept: float | None = None
        for p in ps:
            if not tree.replaces(p, q):
                kept = p if kept is None else kept
            elif kept is not None and p > _SURE:
                return f"it replaces a draft of {p:.2g}, and keeps one of {kept:.2g}, beside an assistant of {q:.2g}"
        if q <= _SURE and tree.replaces(ps[-1], q):
            return f"it replaces a draft of {ps[-1]:.2g} by an assistant of {q:.2g}"
    return None


def _between_thresholds(tree: TreeVerifier, feature: Literal["p", "q"]) -> list[float]:
    """Return a probability from each interval between neighbouring thresholds of a feature, in ascending order."""
    bounds = {node.threshold for node in tree.nodes if node.feature == feature and node.threshold is not None}
    inner = sorted(one for one in {*bounds, _SURE} if 0 < one < 1)
    return [(low + high) / 2 for low, high in pairwise([0.0, *inner, 1.0])]
