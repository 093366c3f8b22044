"""From samples to a tree, and the report that says whether it is worth having."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cosd_api
from cosd_api import Endpoint, SettingError, Training, TreeVerifier, train_tree
from cosd_api.training.evaluation import DEFAULT_RULE, TREE, TUNED_RULE, Place
from cosd_api.training.growing import Growing, Grown
from cosd_api.training.samples import Example, ExampleSamples, Sample, Samples
from cosd_api.training.tree import compare
from cosd_api.verification.tree import Node

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
    return Samples(examples=everything, draft=endpoint(draft), assistant=endpoint("assistant"), unit="word")


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


def test_the_report() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False), (0.2, 0.2, None, False), (0.3, 0.3, 0, True)]
    training = train_tree(samples(rows, rows, rows, skipped=2))
    assert training.comparison is None
    assert str(training).split("\n") == [
        "3 examples: 3 places where the draft is right and the assistant is not, 3 the",
        "other way round; 3 where they agree, 3 where neither is right, 6 that could not",
        "be judged.",
        "",
        "Tree of depth 1. Limits: depth 2, at least 1 place to a leaf (both the default",
        "for few examples):",
        "",
        "  p <= 0.5: replace",
        "  p > 0.5: keep",
        "",
        "Note: how good the tree is is not known: 3 examples have a place where just one",
        "of the two models is right, and an estimate takes 5.",
    ]
    told = str(train_tree(drawn(8)))
    assert " to a leaf (both chosen on held-out examples): q <= 0." in " ".join(told.split())
    assert "\n\nOn held-out examples (5 folds over 8 examples, 80 places):\n\n" in told
    assert " nodes, too many to show\n" in str(train_tree(drawn(4, 60, noise=0.5), depth=12, min_leaf=1))


# What it says of itself.


def test_the_same_data_gives_the_same_file_byte_by_byte(tmp_path: Path) -> None:
    data = drawn(5, noise=0.2)
    mixed = data.model_copy(update={"examples": tuple(random.Random(1).sample(data.examples, 5))})
    half = [data.model_copy(update={"examples": part}) for part in (data.examples[:2], data.examples[2:])]
    files = [tmp_path / name for name in ("first", "again")]
    for path, one in zip(files, (data, mixed), strict=True):
        train_tree(one, seed=3).tree.save(path)
    assert files[0].read_bytes() == files[1].read_bytes()
    first, again = (train_tree(sets, depth=2, min_leaf=1) for sets in (half, half[::-1]))
    assert first == again


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


# Agreeing places, and several sets.


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


def test_several_sets_are_one_and_another_pair_is_a_note() -> None:
    first, second = drawn(4), drawn(8)
    together = train_tree([first, second], depth=2, min_leaf=1)
    assert together.counts.examples == 12
    assert together.comparison is not None
    assert together.comparison.examples == 8  # four are the same
    assert together.warnings == ()
    another = second.model_copy(update={"draft": endpoint("other")})
    other = train_tree([first, another], depth=2, min_leaf=1)
    assert "the samples are of 2 pairs of models, and the tree is of none of them alone" in other.warnings


# Whether it is worth having.


def test_a_tree_that_is_no_better_than_the_rule_says_so() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False)]
    (note,) = train_tree(samples(*[rows] * 6)).warnings
    assert note == (
        "on held-out examples the tree has a balanced accuracy of 100.0%, and the rule (0.5, 0.5), which is simpler, "
        "100.0%"
    )


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
        ([], "there is nothing to train on: the samples have no examples"),
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
        ("samples.jsonl", r"samples must be what collect\(\) returns or Samples.load\(\) reads"),
        ([{"p": 0.1}], "samples must be what"),
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
        "only 1 example has a place where the assistant alone is right, and an estimate takes 2: with "
        "one held out there is one to learn from"
    )


ROWS = st.tuples(
    st.sampled_from((0.0, 0.25, 0.5, 1.0)), st.floats(0, 1), st.sampled_from((0, 1, None)), st.booleans()
).map(lambda row: (row[0], row[1], row[2] if not (row[3] and row[2]) else None, row[3]))


@settings(max_examples=12)
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
    assert (training.comparison is None) == any("is not known" in note for note in training.warnings)


def test_nothing_of_what_is_held_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth and leaf size are chosen where a tree is grown."""
    seen: list[set[int]] = []

    def grow(_: Growing, places: Sequence[Place]) -> Grown:
        seen.append({place.group for place in places})
        return Grown((Node(value=0),), 1, 1, chosen=False)

    monkeypatch.setattr(Growing, "grow", grow)
    assert compare(drawn(9), folds=3) is not None
    assert [len(groups) for groups in seen] == [6, 6, 6]
    assert not set.intersection(*seen)


def test_the_comparison_alone_takes_a_grid_of_ones_own() -> None:
    data = drawn(5)
    narrow, wide = compare(data, alphas=(0.5,), betas=(0.5,)), compare(data, alphas=(0.8, 0.5), betas=(0.5, 1, 2))
    assert narrow is not None
    assert wide is not None
    assert narrow.scores[TUNED_RULE] == narrow.scores[DEFAULT_RULE] == wide.scores[DEFAULT_RULE]
    assert wide.scores[TUNED_RULE].accuracy > narrow.scores[TUNED_RULE].accuracy
    assert wide.scores[TREE] == train_tree(data).comparison.scores[TREE]  # type: ignore[union-attr]


def test_what_was_given_and_what_was_not_is_told() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False)]

    def told(data: Samples, **settings: Any) -> str:
        return " ".join(str(train_tree(data, **settings)).split())

    few, many = samples(rows), samples(*[rows] * 5)
    assert "Tree of depth 1. Limits: depth 4, at least 1 place to a leaf (both given):" in told(
        few, depth=4, min_leaf=1
    )
    words = "Limits: depth 4 (given), at least 1 place to a leaf (the default for few examples):"
    assert words in told(few, depth=4)
    assert "depth 3 (given), at least 1 place to a leaf (chosen on held-out examples):" in told(many, depth=3)


def test_many_places_where_neither_is_right_are_a_note() -> None:
    rows: list[Row] = [(0.1, 0.9, 1, False), (0.9, 0.9, 0, False), *[(0.5, 0.5, None, False)] * 3]
    notes = train_tree(samples(rows, rows)).warnings
    assert any(note.startswith("at 6 of 10 places where the models differ neither is right: check") for note in notes)
    neither = samples([(0.5, 0.5, None, False)] * 2)
    with pytest.raises(
        SettingError, match="the answers are written as a model would write them, leading space included"
    ):
        train_tree(neither)
