"""Scores, folds and the comparison of methods."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import RuleVerifier
from cosd_api.apps.training.dataset import Samples
from cosd_api.apps.training.evaluation import (
    ALWAYS_ASSISTANT,
    ALWAYS_DRAFT,
    BASELINES,
    DEFAULT_RULE,
    PAPER_RULE,
    TUNED_RULE,
    Decide,
    LabelledPlace,
    Score,
    best_rule,
    deciding,
    held_out,
    lacking,
    places_of,
    score,
    split,
)
from cosd_api.forcing.samples import Example, ExampleSamples, Label, Sample

PROBS = st.integers(0, 16).map(lambda count: count / 16)
LABELS: st.SearchStrategy[Label] = st.sampled_from((0, 1))
PLACES = st.lists(
    st.builds(LabelledPlace, PROBS, PROBS, LABELS, st.integers(0, 9), st.just(False))
    | st.builds(LabelledPlace, PROBS, PROBS, LABELS, st.integers(0, 12), st.just(True)),
    max_size=40,
)
# Five examples: the draft is right where p is high. The default rule and the paper's err at the places with p = 0.4.
ROWS: tuple[tuple[float, Label], ...] = ((0.1, 1), (0.4, 0), (0.9, 0))
FIVE = [LabelledPlace(p, 0.9, label, group) for group in range(5) for p, label in ROWS]


def samples(prompt: str, *rows: tuple[float, float, int | None, bool]) -> Samples:
    made = tuple(Sample(p, q, label, agreed, 0, "a", "b", "a") for p, q, label, agreed in rows)  # type: ignore[arg-type]
    return Samples(examples=(ExampleSamples(example=Example(prompt=prompt, answer=" a"), samples=made),))


def test_places_are_those_with_a_label_and_an_example_is_one_group() -> None:
    one = samples("Q", (0.1, 0.9, 1, False), (0.2, 0.8, None, False), (0.3, 0.7, 0, True), (0.4, 0.6, None, True))
    assert places_of(one) == [LabelledPlace(0.1, 0.9, 1, 0)]
    assert places_of(one, keep_agreeing=True) == [
        LabelledPlace(0.1, 0.9, 1, 0),
        LabelledPlace(0.3, 0.7, 0, 0, agreed=True),
    ]
    twice = Samples(examples=(*one.examples, *samples("R", (0.5, 0.5, 0, False)).examples, *one.examples))
    assert [place.group for place in places_of(twice)] == [0, 1, 0]


def test_a_score_by_hand() -> None:
    places = [
        LabelledPlace(0.1, 0.9, 1, 0),
        LabelledPlace(0.2, 0.9, 0, 0),
        LabelledPlace(0.9, 0.9, 0, 0),
        LabelledPlace(0.8, 0.9, 0, 0),
    ]
    found = score([*places, LabelledPlace(0.1, 0.9, 0, 0, agreed=True)], RuleVerifier.paper().replaces)
    assert found.matrix == ((2, 1), (0, 1))
    assert (found.places, found.accuracy, found.balanced_accuracy) == (4, 3 / 4, (2 / 3 + 1) / 2)
    assert (found + found).matrix == ((4, 2), (0, 2))
    assert score(places[1:], RuleVerifier.paper().replaces).balanced_accuracy == 2 / 3
    assert math.isnan(score([], RuleVerifier.paper().replaces).accuracy)
    assert math.isnan(score([], RuleVerifier.paper().replaces).balanced_accuracy)


@given(PLACES, st.floats(0, 1.2), st.floats(0, 2))
def test_a_score_counts_every_place_once(places: list[LabelledPlace], alpha: float, beta: float) -> None:
    rule = RuleVerifier(alpha=alpha, beta=beta)
    found = score(places, rule.replaces)
    counted = [place for place in places if not place.agreed]
    assert found.places == len(counted)
    right = sum(rule.replaces(place.p, place.q) == (place.label == 1) for place in counted)
    assert not counted or found.accuracy == right / len(counted)


def test_the_best_rule_is_the_most_accurate_one_and_then_the_nearest_to_the_default() -> None:
    assert best_rule(FIVE) == RuleVerifier(alpha=0.25, beta=1)
    assert best_rule([]) == RuleVerifier()


# Folds.


@given(PLACES, st.integers(2, 6), st.integers(0, 3))
def test_folds_hold_out_whole_examples_and_leave_both_labels_to_learn_from(
    places: list[LabelledPlace], folds: int, seed: int
) -> None:
    parts = split(places, folds=folds, seed=seed)
    assert len(parts) <= folds
    key = lambda place: (place.group, place.p, place.q, place.label, place.agreed)  # noqa: E731
    assert sorted((place for _, test in parts for place in test), key=key) == sorted(places, key=key)
    for train, test in parts:
        assert len(train) + len(test) == len(places)
        assert not {place.group for place in train} & {place.group for place in test}
    labels = deciding(places).values()
    for label in (0, 1):
        if sum(label in found for found in labels) >= 2:
            assert all(any(place.label == label and not place.agreed for place in train) for train, _ in parts)
    assert split(places, folds=folds, seed=seed) == parts


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], "no example has a place where just one of the two models is right, and an estimate needs 5"),
        (FIVE[:3], "1 example has a place"),
        ([place for place in FIVE if place.group < 4], "4 examples have a place"),
        ([place for place in FIVE if place.label == 0], "no example has a place where the assistant alone is right"),
        (
            [place for place in FIVE if place.label == 0 or place.group == 3],
            "only 1 example has a place where the assistant alone is right, and an estimate needs 2",
        ),
        ([place for place in FIVE if place.label == 1], "no example has a place where the draft alone is right"),
        (FIVE, None),
    ],
)
def test_what_an_estimate_lacks(places: list[LabelledPlace], words: str | None) -> None:
    lack = lacking(places)
    assert lack is None if words is None else lack is not None and lack.startswith(words)
    assert (held_out(places, BASELINES, folds=5, seed=0) is None) == (words is not None)


# The comparison.


def test_methods_are_compared_on_the_same_held_out_places() -> None:
    comparison = held_out(FIVE, BASELINES, folds=3, seed=0)
    assert comparison is not None
    assert (comparison.examples, comparison.folds) == (5, 3)
    assert {name: one.matrix for name, one in comparison.scores.items()} == {
        ALWAYS_DRAFT: ((10, 0), (5, 0)),
        ALWAYS_ASSISTANT: ((0, 10), (0, 5)),
        DEFAULT_RULE: ((5, 5), (0, 5)),
        PAPER_RULE: ((5, 5), (0, 5)),
        TUNED_RULE: ((10, 0), (0, 5)),
    }
    assert str(comparison).split("\n") == [
        "On held-out examples (3 folds over 5 examples, 15 places):",
        "",
        "                                          draft right   assistant right",
        "                  accuracy  balanced   kept  replaced   kept  replaced",
        "always draft         66.7%     50.0%     10         0      5         0",
        "always assistant     33.3%     50.0%      0        10      0         5",
        "rule (0.9, 1)        66.7%     75.0%      5         5      0         5",
        "rule (0.5, 0.5)      66.7%     75.0%      5         5      0         5",
        "tuned rule          100.0%    100.0%     10         0      0         5",
    ]


def test_nothing_is_learned_from_what_is_held_out() -> None:
    """A method that learns by heart knows nothing of the others."""

    def by_heart(train: Sequence[LabelledPlace]) -> Decide:
        known = {(place.p, place.q): place.label == 1 for place in train}
        return lambda p, q: known.get((p, q), False)

    places = [LabelledPlace(group / 100 + label / 10, 0.5, label, group) for group in range(9) for label in (0, 1)]
    comparison = held_out(places, {"by heart": by_heart}, folds=4, seed=1)
    assert comparison is not None
    assert comparison.scores["by heart"] == Score(matrix=((9, 0), (9, 0)))
