"""Training of the decision tree `T(p, q)` (section 3.2 of the CoSD paper).

scikit-learn fits the tree. Each split minimises the log loss, the loss of the paper's equation 7. The trained
`TreeVerifier` works without scikit-learn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from cosd_api import SettingError, TreeVerifier, __version__
from cosd_api.extend import TreeNode, check_count
from cosd_api.training.dataset import Contexts, Samples
from cosd_api.training.evaluation import (
    ALWAYS_ASSISTANT,
    ALWAYS_DRAFT,
    DEFAULT_RULE,
    PAPER_RULE,
    QUARTERS,
    TREE,
    TUNED_RULE,
    Decide,
    Fit,
    HeldOutScores,
    LabelledPlace,
    Score,
    baselines,
    held_out,
    lacking,
    places_of,
)
from cosd_api.training.report import Training, TrainingCounts, about_dropped, one_sided
from cosd_api.types import Endpoint

__all__ = [
    "DEEPEST",
    "LARGEST_SEED",
    "ClassWeight",
    "FittedTree",
    "TreeFit",
    "check_samples",
    "compare",
    "digest_of",
    "nodes_of",
    "pairs_of",
    "sklearn_version",
    "train_tree",
]

ClassWeight = Literal["balanced"]

DEEPEST = 12
"""Maximum depth of a tree. `TreeVerifier` still accepts a full tree of this depth, which has 4,096 leaves."""
_CRITERION = "log_loss"
_DEPTHS = (1, 2, 3, 4)
_LEAVES = (20, 5, 1)
# Limits for too few examples. A tree of depth 2 can express the rule: is p low, and is q high?
_DEPTH, _LEAF = 2, 1
LARGEST_SEED = 2**32 - 1
"""Largest seed that NumPy accepts."""


def train_tree(
    samples: Samples | Sequence[Samples],
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
        samples: samples from `collect`, one data set or several. An example that occurs in several data sets is held
            out from all of them together.
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
    sets = check_samples(samples)
    places = places_of(sets, keep_agreeing=keep_agreeing)
    counts = TrainingCounts.of(sets, places)
    _check_labels(counts, places)
    fitted = trees.fit(places)
    comparison = _compare(places, trees)
    pairs = pairs_of(sets)
    trained_on: dict[str, JsonValue] = {
        "pairs": pairs,
        "data": digest_of([one.digest for one in sets]),
        "counts": counts.model_dump(),
        "features": ["p", "q"],
        "alternative_features": ["p"],
        "criterion": _CRITERION,
        "depth": fitted.depth,
        "min_leaf": fitted.min_leaf,
        "keep_agreeing": keep_agreeing,
        "class_weight": class_weight,
        "folds": folds,
        "seed": seed,
        "scikit_learn": sklearn_version(),
        "library_version": __version__,
    }
    tree = TreeVerifier(nodes=fitted.nodes, contexts=_contexts(sets), trained_on=trained_on)
    return Training(
        tree=tree,
        depth=fitted.depth,
        min_leaf=fitted.min_leaf,
        given=trees.given,
        chosen=fitted.chosen,
        counts=counts,
        comparison=comparison,
        warnings=(
            *_about_contexts(sets),
            *_about_data(len(pairs), places, counts),
            *_about_tree(tree),
            *_about_worth(comparison, trees),
        ),
    )


def compare(
    samples: Samples | Sequence[Samples],
    *,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    folds: int = 5,
    seed: int = 0,
) -> HeldOutScores | None:
    """Compare the constants, the default rule, the paper's rule, a tuned rule and a tree on the same held-out examples.

    Returns None if there are too few samples. At least five examples must have a place where exactly one model is
    right; and for each model, at least two examples must have a place where only that model is right.

    Raises:
        SettingError: an argument is invalid.
    """
    return _compare(places_of(check_samples(samples)), TreeFit(folds=folds, seed=seed), alphas, betas)


def _compare(
    places: Sequence[LabelledPlace],
    trees: TreeFit,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
) -> HeldOutScores | None:
    # Each fold chooses the depth and leaf size of its tree on its own training places.
    def fit_tree(train: Sequence[LabelledPlace]) -> Decide:
        return TreeVerifier(nodes=trees.fit(train).nodes).replaces

    return held_out(places, {**baselines(alphas, betas), TREE: fit_tree}, folds=trees.folds, seed=trees.seed)


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
        for name, value, least, most in (
            ("depth", self.depth, 1, DEEPEST),
            ("min_leaf", self.min_leaf, 1, None),
            ("folds", self.folds, 2, None),
            ("seed", self.seed, 0, LARGEST_SEED),
        ):
            if value is not None and check_count(name, value, least=least) > (value if most is None else most):
                raise SettingError(f"{name} must be at most {most}, not {value}")
        if self.class_weight not in ("balanced", None):
            raise SettingError(f"class_weight must be 'balanced' or None, not {self.class_weight!r}")

    @property
    def given(self) -> tuple[Literal["depth", "min_leaf"], ...]:
        """The names of the limits that the caller has given."""
        depth: tuple[Literal["depth"], ...] = ("depth",) if self.depth is not None else ()
        return (*depth, "min_leaf") if self.min_leaf is not None else depth

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


def sklearn_version() -> str:
    """The installed version of scikit-learn."""
    import sklearn  # noqa: PLC0415

    return str(sklearn.__version__)


# The data.


def check_samples(samples: Samples | Sequence[Samples]) -> Sequence[Samples]:
    """Check the data sets; sort them and their examples, so that the order of collection does not matter.

    Raises:
        SettingError: `samples` is not a data set or a list of data sets, or there are no examples.
    """
    sets = [samples] if isinstance(samples, Samples) else samples
    if not isinstance(sets, Sequence) or not all(isinstance(one, Samples) for one in sets):
        raise SettingError("samples must be the result of collect() or Samples.load(), or a list of these")
    if not any(one.examples for one in sets):
        raise SettingError("there is nothing to train on: the samples have no examples")
    # `collect` stores examples in the order in which they finish, but a tree must not depend on timing.
    ordered = [
        one.model_copy(update={"examples": tuple(sorted(one.examples, key=lambda found: found.example.key))})
        for one in sets
    ]
    return sorted(ordered, key=lambda one: (one.digest, one.deferral_digest))


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


def pairs_of(sets: Sequence[Samples]) -> list[JsonValue]:
    """Return the distinct pairs of models, without the models' addresses, which may be confidential."""
    found: list[JsonValue] = []
    for one in sets:
        pair: JsonValue = {"draft": _model(one.draft), "assistant": _model(one.assistant), "unit": one.unit}
        if pair not in found:
            found.append(pair)
    return found


def _model(endpoint: Endpoint | None) -> JsonValue:
    return None if endpoint is None else {"engine": endpoint.engine, "model": endpoint.model}


def digest_of(digests: Sequence[str]) -> str:
    """Combine the digests of several data sets into one."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


# Warnings.


def _contexts(sets: Sequence[Samples]) -> Contexts | None:
    """Return `"text"` if any data set was collected with text, else `"ids"`; None if this is unknown for a data set."""
    ways = {one.contexts for one in sets}
    return None if None in ways else "text" if "text" in ways else "ids"


def _about_contexts(sets: Sequence[Samples]) -> list[str]:
    if any(one.contexts is None and one.draft is not None for one in sets):
        return [
            "samples of an earlier cosd-api were measured after cut texts, not as a fusion asks: collect them again"
        ]
    return []


def _about_data(pairs: int, places: Sequence[LabelledPlace], counts: TrainingCounts) -> list[str]:
    found = about_dropped(counts.draft_right + counts.assistant_right, counts.dropped)
    if pairs > 1:
        found.append(f"the samples are of {pairs} pairs of models, so the tree fits none of them alone")
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
