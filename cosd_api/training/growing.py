"""A tree from places: scikit-learn grows it, and what it has learned becomes nodes without scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cosd_api.errors import SettingError
from cosd_api.settings import check_count
from cosd_api.training.evaluation import Fit, Place, Score, held_out
from cosd_api.verification import TreeVerifier
from cosd_api.verification.tree import Node

__all__ = ["COMPARING", "DEEPEST", "ClassWeight", "Growing", "Grown", "check_sklearn", "nodes_of", "sklearn_version"]

ClassWeight = Literal["balanced"]

COMPARING = "comparing the rule with a tree on held-out examples"
"""What tuning needs scikit-learn for."""
DEEPEST = 12
"""Its 4096 leaves and what is above them are still read as a tree."""
_DEPTHS = (1, 2, 3, 4)
_LEAVES = (20, 5, 1)
# Without enough examples to choose by. Two questions in a row suffice for "unsure draft, sure assistant", which is what
# the rule asks.
_DEPTH, _LEAF = 2, 1
_SEEDS = 2**32  # NumPy takes so many


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree that was grown.

    Attributes:
        nodes: as `TreeVerifier` takes them.
        depth: how many questions it may ask in a row.
        min_leaf: how many places each of its answers stands for at least.
        chosen: whether one of the two was chosen on held-out examples.
    """

    nodes: tuple[Node, ...]
    depth: int
    min_leaf: int
    chosen: bool

    @property
    def tree(self) -> TreeVerifier:
        """It as a verifier, without where it comes from."""
        return TreeVerifier(nodes=self.nodes)


@dataclass(frozen=True, slots=True)
class Growing:
    """How trees are grown; the arguments of `train_tree`.

    Raises:
        SettingError: one of them is none.
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
            ("seed", self.seed, 0, _SEEDS - 1),
        ):
            if value is not None and check_count(name, value, least=least) > (value if most is None else most):
                raise SettingError(f"{name} must be at most {most}, not {value}")
        if self.class_weight not in ("balanced", None):
            raise SettingError(f"class_weight must be 'balanced' or None, not {self.class_weight!r}")

    @property
    def given(self) -> tuple[Literal["depth", "min_leaf"], ...]:
        """Which of the two are not to be chosen."""
        depth: tuple[Literal["depth"], ...] = ("depth",) if self.depth is not None else ()
        return (*depth, "min_leaf") if self.min_leaf is not None else depth

    def measure(self, score: Score) -> float:
        """What depth and leaf size are chosen by: that which the class weights make a tree learn."""
        return score.accuracy if self.class_weight is None else score.balanced_accuracy

    def grow(self, places: Sequence[Place]) -> Grown:
        """A tree for these places.

        Depth and leaf size, where they are not given, are the best on held-out examples, and of equally good ones the
        simplest. Where the examples do not suffice for that: depth 2, and leaves of any size.
        """
        pairs = {
            f"{depth} {leaf}": (depth, leaf)  # the simplest first
            for depth in ([self.depth] if self.depth else _DEPTHS)
            for leaf in ([self.min_leaf] if self.min_leaf else _LEAVES)
        }
        methods = {name: self._learner(*pair) for name, pair in pairs.items()}
        comparison = held_out(places, methods, folds=self.folds, seed=self.seed) if len(pairs) > 1 else None
        if comparison is None:
            depth, leaf = self.depth or _DEPTH, self.min_leaf or _LEAF
        else:
            scores = comparison.scores
            depth, leaf = pairs[max(scores, key=lambda name: self.measure(scores[name]))]
        return Grown(self._nodes(places, depth, leaf), depth, leaf, comparison is not None)

    def _learner(self, depth: int, leaf: int) -> Fit:
        return lambda places: TreeVerifier(nodes=self._nodes(places, depth, leaf)).replaces

    def _nodes(self, places: Sequence[Place], depth: int, leaf: int) -> tuple[Node, ...]:
        """Of two trees that do equally well where they were grown, that which does not look at q.

        With few places p and q often tell the labels apart equally well, and scikit-learn then draws lots. A question
        about q alone is contestable wherever the draft is sure, too: it asks about nearly every token, and a sure
        assistant that is wrong goes through.
        """
        import numpy as np  # noqa: PLC0415 - an extra, and slow to load

        features = np.array([(place.p, place.q) for place in places], dtype=np.float32)
        labels = np.array([place.label for place in places])
        weights = np.ones(len(labels)) if self.class_weight is None else 1 / np.bincount(labels)[labels]

        def rank(one: Any) -> tuple[float, int]:
            answers = one.classes_[one.tree_.predict(features).argmax(axis=1)]
            return -float(weights[answers == labels].sum()), one.tree_.node_count

        blind = features * np.array([1, 0], dtype=np.float32)  # what is 0 everywhere is never asked about
        return nodes_of(min((self._fitted(shown, labels, depth, leaf) for shown in (blind, features)), key=rank))

    def _fitted(self, features: Any, labels: Any, depth: int, leaf: int) -> Any:
        import sklearn  # noqa: PLC0415
        from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415

        with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):  # which takes most of the time
            classifier = DecisionTreeClassifier(
                max_depth=depth, min_samples_leaf=leaf, class_weight=self.class_weight, random_state=self.seed
            )
            return classifier.fit(features, labels)


def nodes_of(classifier: Any) -> tuple[Node, ...]:  # Any: scikit-learn has no types
    """What a fitted `DecisionTreeClassifier` on `[p, q]` has learned, root first.

    Each leaf answers as scikit-learn's `predict` does: the class with the most weight, and of equal ones the first.
    A question whose answers are all the same is not asked.
    """
    grown = classifier.tree_
    lefts: list[int] = grown.children_left.tolist()
    rights: list[int] = grown.children_right.tolist()
    features: list[int] = grown.feature.tolist()
    thresholds: list[float] = grown.threshold.tolist()
    classes: list[int] = classifier.classes_.tolist()
    #: What every leaf below says; None where they differ. Children stand after their parents.
    answers: list[int | None] = [classes[column] for column in grown.value[:, 0, :].argmax(axis=1).tolist()]
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
    return tuple(map(Node.model_validate, nodes))


def check_sklearn(purpose: str = "training a tree") -> None:
    """Sees whether trees can be grown: before anything that takes long.

    Args:
        purpose: what they are for, in words.

    Raises:
        SettingError: scikit-learn is missing; the message names the extra.
    """
    try:
        import sklearn  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - only whether it is there
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise SettingError(f'{purpose} needs scikit-learn: pip install "cosd-api[train]"') from None


def sklearn_version() -> str:
    """That trees are grown with."""
    import sklearn  # noqa: PLC0415

    return str(sklearn.__version__)
