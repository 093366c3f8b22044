"""From samples to a tree: fitting, the report on it, and nodes that predict as scikit-learn does."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cosd_api
from cosd_api import SettingError, TreeVerifier, train_tree
from cosd_api.apps.training import Training
from cosd_api.apps.training.dataset import Samples
from cosd_api.apps.training.evaluation import TREE, TUNED_RULE, LabelledPlace, places_of
from cosd_api.apps.training.fit import FittedTree, TreeFit, compare, nodes_of
from cosd_api.forcing.samples import Example, ExampleSamples, Sample
from cosd_api.types import Endpoint
from cosd_api.verification.tree import TreeNode
from support.drawn import costly
from toys.trees import neighbours

Row = tuple[float, float, int | None, bool]
"""p, q, label, and whether both agree."""


SECRET = "sk-secret"


def endpoint(name: str) -> Endpoint:
    url = f"http://user:{SECRET}@{name}:8080"
    return Endpoint(name=name, endpoint=url, engine="llama.cpp", model=f"{name}.gguf", build="b1", context=512)


def samples(*examples: Sequence[Row], skipped: int = 0, draft: str = "draft") -> Samples:
    def made(at: int, rows: Sequence[Row]) -> ExampleSamples:
        found = tuple(Sample(p, q, label, agreed, 0, "a", "b", "a") for p, q, label, agreed in rows)  # type: ignore[arg-type]
        return ExampleSamples(example=Example(prompt=f"Q{at}", answer=" a"), samples=found, skipped=skipped)

    everything = tuple(made(at, rows) for at, rows in enumerate(examples))
    ends: dict[str, Any] = {"draft": endpoint(draft), "assistant": endpoint("assistant")}
    return Samples(examples=everything, unit="word", contexts="ids", **ends)


def drawn(count: int, each: int = 10, *, seed: int = 0, noise: float = 0.0) -> Samples:
    """The assistant is right where p < 0.8 and q > 0.9, where no rule of the grid is."""
    rng = random.Random(seed)

    def row() -> Row:
        p, q = rng.random(), rng.random() if rng.random() < 0.5 else 0.9 + rng.random() / 10
        return p, q, int((p < 0.8 and q > 0.9) != (rng.random() < noise)), False

    return samples(*([row() for _ in range(each)] for _ in range(count)))


def test_a_tree_is_trained_and_compared() -> None:
    training = train_tree(drawn(20, noise=0.05))
    assert training.chosen
    assert training.comparison is not None
    assert training.comparison.scores[TREE].balanced_accuracy > 0.9
    assert training.comparison.scores[TUNED_RULE].balanced_accuracy < 0.8
    assert training.warnings == ()
    assert training.tree.replaces(0.5, 0.95)
    assert not training.tree.replaces(0.5, 0.5)
    assert not training.tree.contestable(0.95)
    assert Training.model_validate_json(training.model_dump_json()) == training


@pytest.mark.extended
def test_the_report() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False), (0.2, 0.2, None, False), (0.3, 0.3, 0, True)]
    training = train_tree(samples(rows, rows, rows, skipped=2))
    assert training.comparison is None
    assert str(training).split("\n") == [
        "3 examples: 3 places where the draft is right and the assistant is not, 3 the",
        "other way round; 3 where they agree, 3 where neither is right, 6 that could not",
        "be judged.",
        "",
        "Tree, depth of at most 2, at least 1 place to a leaf:",
        "",
        "  p <= 0.5: replace",
        "  p > 0.5: keep",
        "",
        "Note: the tree's accuracy is unknown: 3 examples have a place where just one of",
        "the two models is right, and an estimate needs 5.",
    ]
    told = str(train_tree(drawn(8)))
    assert " to a leaf (chosen on held-out examples): q <= 0." in " ".join(told.split())
    assert "\n\nOn held-out examples (5 folds over 8 examples, 80 places):\n\n" in told
    assert " nodes, too many to show\n" in str(train_tree(drawn(4, 60, noise=0.5), depth=12, min_leaf=1))


# What it says of itself.


def test_the_same_data_gives_the_same_file_byte_by_byte(tmp_path: Path) -> None:
    data = drawn(5, noise=0.2)
    mixed = data.model_copy(update={"examples": tuple(random.Random(1).sample(data.examples, 5))})
    files = [tmp_path / name for name in ("first", "again")]
    for path, one in zip(files, (data, mixed), strict=True):
        train_tree(one, seed=3).tree.save(path)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_where_a_tree_comes_from_and_no_address(tmp_path: Path) -> None:
    data = drawn(9)
    training = train_tree(data, class_weight=None, keep_agreeing=True, depth=2)
    training.tree.save(tmp_path / "tree.json")
    text = (tmp_path / "tree.json").read_text()
    told = json.loads(text)["trained_on"]
    assert SECRET not in text
    assert "8080" not in text
    version = told.pop("scikit_learn")
    assert version.count(".") >= 2
    assert told == {
        "pairs": [
            {
                "draft": {"engine": "llama.cpp", "model": "draft.gguf"},
                "assistant": {"engine": "llama.cpp", "model": "assistant.gguf"},
                "unit": "word",
            }
        ],
        "data": data.model_copy(
            update={"examples": tuple(sorted(data.examples, key=lambda one: one.example.key))}
        ).digest,
        "counts": training.counts.model_dump(),
        "features": ["p", "q"],
        "alternative_features": ["p"],
        "criterion": "log_loss",
        "depth": 2,
        "min_leaf": training.min_leaf,
        "keep_agreeing": True,
        "class_weight": None,
        "folds": 5,
        "seed": 0,
        "library_version": cosd_api.__version__,
    }


def test_the_data_is_told_apart_by_what_trains() -> None:
    one, other = (train_tree(drawn(5, seed=seed)).tree.trained_on["data"] for seed in (0, 1))
    assert one != other


# Agreeing places.


@pytest.mark.extended
def test_places_where_both_agree_train_only_where_that_is_wanted_and_never_count() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.2, 0.9, 1, False), (0.9, 0.9, 0, False)]
    agreeing: list[Row] = [(0.15, 0.9, 0, True), (0.1, 0.95, 0, True), (0.2, 0.95, 0, True)] * 3
    data = samples(*[[*rows, *agreeing]] * 6)
    without, kept = train_tree(data, class_weight=None), train_tree(data, class_weight=None, keep_agreeing=True)
    assert without.tree.replaces(0.12, 0.93)
    assert not kept.tree.replaces(0.12, 0.93)
    assert without.counts == kept.counts
    assert without.comparison is not None
    assert kept.comparison is not None
    assert {one.places for one in (*without.comparison.scores.values(), *kept.comparison.scores.values())} == {18}
    assert kept.comparison.scores[TUNED_RULE] == without.comparison.scores[TUNED_RULE]


def test_a_tree_says_how_its_samples_were_taken() -> None:
    by_ids = drawn(4)
    by_text, unknown = (by_ids.model_copy(update={"contexts": one}) for one in ("text", None))
    assert [train_tree(one).tree.contexts for one in (by_ids, by_text, unknown)] == ["ids", "text", None]


# Whether it is worth having.


@pytest.mark.extended
def test_a_tree_that_is_no_better_than_the_rule_says_so() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False)]
    (note,) = train_tree(samples(*[rows] * 6)).warnings
    assert note == (
        "on held-out examples the tree has a balanced accuracy of 100.0%, and the rule (0.9, 1), which is simpler, "
        "100.0%"
    )


@pytest.mark.extended
def test_a_tree_that_is_no_better_than_a_constant_says_so() -> None:
    rng = random.Random(0)
    noise = [[(rng.random(), rng.random(), int(rng.random() < 0.2), False) for _ in range(10)] for _ in range(8)]
    notes = train_tree(samples(*noise)).warnings
    assert any("on held-out examples the draft alone is right at" in note for note in notes)
    constant = train_tree(samples(*noise), class_weight=None, depth=1, min_leaf=40)
    assert any(
        "always keeps the draft's word, so that the assistant is never asked" in note for note in constant.warnings
    )
    assert not any(constant.tree.contestable(p / 10) for p in range(11))


# What the data may lack.


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Samples(), "there is nothing to train on: the samples have no examples"),
        (samples([], [], skipped=3), r"no place of the 2 examples could be judged \(6 were skipped\)"),
        (
            samples([(0.1, 0.1, 0, True), (0.1, 0.1, None, False), (0.1, 0.1, None, True)]),
            "the two models agree at 2 places, and at 1 neither is right; add examples that one of them can answer",
        ),
        (
            samples([(0.1, 0.9, 0, False)] * 41),
            "all 41 labelled samples are the draft's: the assistant was never right where the draft was wrong; add ex",
        ),
        (samples([(0.1, 0.9, 1, False)] * 3), "all 3 labelled samples are the assistant's: the draft was never right"),
        ("samples.jsonl", r"samples must be the result of collect\(\) or Samples.load\(\)"),
        ([{"p": 0.1}], "samples must be the result of"),
    ],
)
def test_what_the_data_lacks_is_said(data: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        train_tree(data)


def test_five_examples_of_which_one_alone_has_a_label_are_no_folds() -> None:
    rows: list[Row] = [(0.8, 0.9, 0, False), (0.7, 0.2, 0, False)]
    training = train_tree(samples(*[rows] * 5, [*rows, (0.1, 0.9, 1, False)]))
    assert (training.comparison, training.chosen, training.depth) == (None, False, 2)
    (note,) = training.warnings
    assert note.endswith(
        "only 1 example has a place where the assistant alone is right, and an estimate needs 2: one to hold out and "
        "one to learn from"
    )


ROWS = st.tuples(
    st.sampled_from((0.0, 0.25, 0.5, 1.0)), st.floats(0, 1), st.sampled_from((0, 1, None)), st.booleans()
).map(lambda row: (row[0], row[1], row[2] if not (row[3] and row[2]) else None, row[3]))


@costly(12)
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from(("balanced", None)),
)
def test_whatever_the_data_there_is_a_tree_or_a_reason(rows: Any, keep_agreeing: bool, class_weight: Any) -> None:
    data = samples(*rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        labelled = [sample for one in data.examples for sample in one.samples if sample.label is not None]
        used = [sample for sample in labelled if keep_agreeing or not sample.agreed]
        if {sample.label for sample in used} != {0, 1} or all(sample.agreed for sample in used):
            with pytest.raises(SettingError, match=r"nothing to (train on|decide): |labelled samples? (is|are) the"):
                train_tree(data, keep_agreeing=keep_agreeing, class_weight=class_weight)
            return
        training = train_tree(data, keep_agreeing=keep_agreeing, class_weight=class_weight)
    assert isinstance(training.tree, TreeVerifier)
    assert (training.comparison is None) == any("accuracy is unknown" in note for note in training.warnings)


def test_nothing_of_what_is_held_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth and leaf size are chosen where a tree is grown."""
    seen: list[set[int]] = []

    def fit(_: TreeFit, places: Sequence[LabelledPlace]) -> FittedTree:
        seen.append({place.group for place in places})
        return FittedTree((TreeNode(value=0),), 1, 1, chosen=False)

    monkeypatch.setattr(TreeFit, "fit", fit)
    assert compare(places_of(drawn(9)), TreeFit(folds=3)) is not None
    assert [len(groups) for groups in seen] == [6, 6, 6]
    assert not set.intersection(*seen)


def test_many_places_where_neither_is_right_are_a_note() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False), *[(0.5, 0.5, None, False)] * 3]
    notes = train_tree(samples(rows, rows)).warnings
    assert any(note.startswith("at 6 of 10 places where the models differ neither is right: check") for note in notes)
    neither = samples([(0.5, 0.5, None, False)] * 2)
    with pytest.raises(
        SettingError, match="the answers are written as a model would write them, leading space included"
    ):
        train_tree(neither)


# The fitted tree.


PROBS = st.floats(0, 1, width=32) | st.floats(0, 1) | st.integers(0, 8).map(lambda count: count / 8)


def classifier_of(**options: Any) -> Any:
    """Imported here, since every worker imports this module, and one runs it."""
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(**options)


@st.composite
def classifiers(draw: st.DrawFn) -> Any:
    """Fitted on anything: noise, ties, equal points with different labels, one class alone, weights or none."""
    points = draw(st.lists(st.tuples(PROBS, PROBS), min_size=1, max_size=30))
    labels = draw(st.lists(st.integers(0, 1), min_size=len(points), max_size=len(points)))
    classifier = classifier_of(
        max_depth=draw(st.none() | st.integers(1, 5)),
        min_samples_leaf=draw(st.integers(1, 4)),
        max_leaf_nodes=draw(st.none() | st.integers(2, 9)),  # grown in another order
        class_weight=draw(st.sampled_from(("balanced", None))),
        splitter=draw(st.sampled_from(("best", "random"))),
        random_state=draw(st.integers(0, 9)),
    )
    return classifier.fit(np.array(points, dtype=np.float32), labels)


@given(classifiers(), st.lists(st.tuples(PROBS, PROBS), max_size=9), st.randoms(use_true_random=False))
def test_prediction_is_scikit_learns(classifier: Any, points: list[tuple[float, float]], rng: Any) -> None:
    tree = TreeVerifier(nodes=nodes_of(classifier))
    thresholds = [x for x in classifier.tree_.threshold.tolist() if x >= 0]
    edges = [0.0, 1.0, *(near for threshold in thresholds for near in neighbours(threshold))]
    points = [*points, *((edge, rng.choice(edges)) for edge in edges), *((rng.choice(edges), edge) for edge in edges)]
    predicted = classifier.predict(np.array(points, dtype=np.float64)).tolist()
    assert [int(tree.replaces(p, q)) for p, q in points] == predicted


def test_equal_weights_are_resolved_as_scikit_learn_does() -> None:
    """Both labels at the same point: its `predict` takes the first class."""
    classifier = classifier_of().fit(np.array([[0.5, 0.5], [0.5, 0.5]], dtype=np.float32), [1, 0])
    assert [node.value for node in nodes_of(classifier)] == [0] == classifier.predict([[0.5, 0.5]]).tolist()


def test_a_question_whose_answers_are_the_same_is_not_asked() -> None:
    points = np.array([[0.1, 0.0], [0.2, 0.0], [0.3, 0.0], [0.4, 0.0], [0.5, 0.0]], dtype=np.float32)
    classifier = classifier_of(max_depth=1).fit(points, [0, 0, 0, 0, 1])
    classifier.tree_.value[2] = [[1.0, 0.0]]
    assert classifier.tree_.node_count == 3
    assert [node.value for node in nodes_of(classifier)] == [0]


def test_of_two_trees_that_do_equally_well_the_one_that_asks_less_is_taken() -> None:
    for seed in range(4):  # scikit-learn draws lots
        apart = [
            LabelledPlace(0.2, 0.9, 1, 0),
            LabelledPlace(0.3, 0.9, 1, 1),
            LabelledPlace(0.7, 0.4, 0, 0),
            LabelledPlace(0.8, 0.3, 0, 1),
        ]
        assert [node.feature for node in TreeFit(seed=seed).fit(apart).nodes] == ["p", None, None]
    # Two questions about p, or one about q: that is the simpler tree.
    by_q = [LabelledPlace(0.2, 0.9, 1, 0), LabelledPlace(0.5, 0.2, 0, 0), LabelledPlace(0.8, 0.9, 1, 1)]
    assert [node.feature for node in TreeFit().fit(by_q).nodes] == ["q", None, None]


def test_a_split_minimises_the_log_loss() -> None:
    """Equation 7. Of two cuts the Gini impurity would choose the one that is right at more places."""

    def rows(p: float, q: float, ones: int, zeros: int) -> list[LabelledPlace]:
        return [LabelledPlace(p, q, 1, 0)] * ones + [LabelledPlace(p, q, 0, 0)] * zeros

    def log_loss(*leaves: tuple[int, int]) -> float:
        return -sum(count * math.log(count / sum(leaf)) for leaf in leaves for count in leaf if count)

    def gini(*leaves: tuple[int, int]) -> float:
        return sum(sum(leaf) - sum(count**2 for count in leaf) / sum(leaf) for leaf in leaves)

    by_p, by_q = ((3, 0), (3, 4)), ((5, 1), (1, 3))  # in each leaf the number of ones and of zeros
    assert log_loss(*by_p) < log_loss(*by_q) and gini(*by_p) > gini(*by_q)
    found = [*rows(0.2, 0.8, 3, 0), *rows(0.8, 0.8, 2, 1), *rows(0.8, 0.2, 1, 3)]
    nodes = TreeFit(depth=1, min_leaf=1, class_weight=None).fit(found).nodes
    assert [(node.feature, node.value) for node in nodes] == [("p", None), (None, 1), (None, 0)]


# Depth and leaf size.


def places(examples: int, each: int, *, seed: int = 0, noise: float = 0.0) -> list[LabelledPlace]:
    """The assistant is right where p < 0.4 and q > 0.6, but for some noise."""
    rng = np.random.default_rng(seed)
    found: list[LabelledPlace] = []
    for group in range(examples):
        for p, q, flip in rng.random((each, 3)).tolist():
            right = (p < 0.4 and q > 0.6) != (flip < noise)
            found.append(LabelledPlace(p, q, 1 if right else 0, group))
    return found


def test_depth_and_leaf_size_are_chosen_on_held_out_examples() -> None:
    noisy = TreeFit().fit(places(20, 20, seed=2, noise=0.15))
    assert (noisy.depth, noisy.min_leaf, noisy.chosen) == (2, 20, True)
    # Eight stripes of p are told apart by three questions, not by two.
    stripes = [
        LabelledPlace(p, q, 1 if int(p * 8) % 2 else 0, one.group)
        for one in places(20, 20)
        for p, q in [(one.p, one.q)]
    ]
    assert TreeFit().fit(stripes).depth == 3
    given = TreeFit(depth=1, min_leaf=7).fit(stripes)
    assert (given.depth, given.min_leaf, given.chosen) == (1, 7, False)
    half = TreeFit(depth=1).fit(stripes)
    assert (half.depth, half.chosen) == (1, True)


def test_below_five_examples_the_depth_is_two() -> None:
    grown = TreeFit().fit(places(4, 20))
    assert (grown.depth, grown.min_leaf, grown.chosen) == (2, 1, False)


def test_class_weights_are_what_depth_is_chosen_by() -> None:
    few = [LabelledPlace(0.1 + 0.01 * at, 0.5, 1 if at % 10 == 0 else 0, at) for at in range(60)]
    counted, balanced = (TreeVerifier(nodes=fit.fit(few).nodes) for fit in (TreeFit(class_weight=None), TreeFit()))
    assert all(not counted.replaces(place.p, place.q) for place in few)
    assert any(balanced.replaces(place.p, place.q) for place in few)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"depth": 0}, "depth must be a whole number of at least 1, not 0"),
        ({"depth": 13}, "depth must be at most 12, not 13"),
        ({"depth": 2.0}, "depth must be a whole number"),
        ({"min_leaf": 0}, "min_leaf must be a whole number of at least 1"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 2**32}, "seed must be at most 4294967295"),
        ({"class_weight": {0: 1}}, r"class_weight must be 'balanced' or None, not \{0: 1\}"),
    ],
)
def test_what_no_tree_can_be_grown_by(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        TreeFit(**settings)
