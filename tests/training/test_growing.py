"""Trees that scikit-learn has grown, as nodes: they decide as its own `predict` does."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from cosd_api import SettingError, TreeVerifier
from cosd_api.training.evaluation import Place
from cosd_api.training.growing import Growing, check_sklearn, nodes_of
from trees import neighbours

PROBS = st.floats(0, 1, width=32) | st.floats(0, 1) | st.integers(0, 8).map(lambda count: count / 8)


@st.composite
def classifiers(draw: st.DrawFn) -> Any:
    """Fitted on anything: noise, ties, equal points with different labels, one class alone, weights or none."""
    points = draw(st.lists(st.tuples(PROBS, PROBS), min_size=1, max_size=30))
    labels = draw(st.lists(st.integers(0, 1), min_size=len(points), max_size=len(points)))
    classifier = DecisionTreeClassifier(
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
    classifier = DecisionTreeClassifier().fit(np.array([[0.5, 0.5], [0.5, 0.5]], dtype=np.float32), [1, 0])
    assert [node.value for node in nodes_of(classifier)] == [0] == classifier.predict([[0.5, 0.5]]).tolist()


def test_a_question_whose_answers_are_the_same_is_not_asked() -> None:
    points = np.array([[0.1, 0.0], [0.2, 0.0], [0.3, 0.0], [0.4, 0.0], [0.5, 0.0]], dtype=np.float32)
    classifier = DecisionTreeClassifier(max_depth=1).fit(points, [0, 0, 0, 0, 1])
    classifier.tree_.value[2] = [[1.0, 0.0]]
    assert classifier.tree_.node_count == 3
    assert [node.value for node in nodes_of(classifier)] == [0]


def test_of_two_trees_that_do_equally_well_the_one_that_asks_less_is_taken() -> None:
    for seed in range(4):  # scikit-learn draws lots
        apart = [Place(0.2, 0.9, 1, 0), Place(0.3, 0.9, 1, 1), Place(0.7, 0.4, 0, 0), Place(0.8, 0.3, 0, 1)]
        assert [node.feature for node in Growing(seed=seed).grow(apart).nodes] == ["p", None, None]
    # Two questions about p, or one about q: that is the simpler tree.
    by_q = [Place(0.2, 0.9, 1, 0), Place(0.5, 0.2, 0, 0), Place(0.8, 0.9, 1, 1)]
    assert [node.feature for node in Growing().grow(by_q).nodes] == ["q", None, None]


# Depth and leaf size.


def places(examples: int, each: int, *, seed: int = 0, noise: float = 0.0) -> list[Place]:
    """The assistant is right where p < 0.4 and q > 0.6, but for some noise."""
    rng = np.random.default_rng(seed)
    found: list[Place] = []
    for group in range(examples):
        for p, q, flip in rng.random((each, 3)).tolist():
            right = (p < 0.4 and q > 0.6) != (flip < noise)
            found.append(Place(p, q, 1 if right else 0, group))
    return found


def test_depth_and_leaf_size_are_chosen_on_held_out_examples() -> None:
    noisy = Growing().grow(places(20, 20, noise=0.15))
    assert (noisy.depth, noisy.min_leaf, noisy.chosen) == (2, 20, True)
    # Eight stripes of p are told apart by three questions, not by two.
    stripes = [
        Place(p, q, 1 if int(p * 8) % 2 else 0, one.group) for one in places(20, 20) for p, q in [(one.p, one.q)]
    ]
    assert Growing().grow(stripes).depth == 3
    given = Growing(depth=1, min_leaf=7).grow(stripes)
    assert (given.depth, given.min_leaf, given.chosen) == (1, 7, False)
    half = Growing(depth=1).grow(stripes)
    assert (half.depth, half.chosen) == (1, True)


def test_below_five_examples_the_depth_is_two() -> None:
    grown = Growing().grow(places(4, 20))
    assert (grown.depth, grown.min_leaf, grown.chosen) == (2, 1, False)


def test_class_weights_are_what_depth_is_chosen_by() -> None:
    few = [Place(0.1 + 0.01 * at, 0.5, 1 if at % 10 == 0 else 0, at) for at in range(60)]
    counted, balanced = Growing(class_weight=None).grow(few), Growing().grow(few)
    assert all(not counted.tree.replaces(place.p, place.q) for place in few)
    assert any(balanced.tree.replaces(place.p, place.q) for place in few)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"depth": 0}, "depth must be a whole number from 1 on, not 0"),
        ({"depth": 13}, "depth must be at most 12, not 13"),
        ({"depth": 2.0}, "depth must be a whole number"),
        ({"min_leaf": 0}, "min_leaf must be a whole number from 1 on"),
        ({"folds": 1}, "folds must be a whole number from 2 on"),
        ({"seed": -1}, "seed must be a whole number from 0 on"),
        ({"seed": 2**32}, "seed must be at most 4294967295"),
        ({"class_weight": {0: 1}}, r"class_weight must be 'balanced' or None, not \{0: 1\}"),
    ],
)
def test_what_no_tree_can_be_grown_by(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Growing(**settings)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SettingError, match=r'needs scikit-learn: pip install "cosd-api\[train\]"'):
        check_sklearn()
