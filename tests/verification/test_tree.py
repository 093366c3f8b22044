"""Prediction from the JSON form. Training, and equality with scikit-learn, come with their own issue."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import TreeVerifier

LEAF_0: dict[str, Any] = {"value": 0}
LEAF_1: dict[str, Any] = {"value": 1}


def question(feature: str, threshold: float, left: int, right: int) -> dict[str, Any]:
    return {"feature": feature, "threshold": threshold, "left": left, "right": right}


EXAMPLE = [question("p", 0.42, 1, 4), question("q", 0.55, 2, 3), LEAF_0, LEAF_1, LEAF_0]
THRESHOLDS = st.one_of(st.sampled_from((0.0, 0.25, 0.5, 1.0)), st.floats(-0.5, 1.5))


@st.composite
def trees(draw: st.DrawFn) -> TreeVerifier:
    nodes: list[dict[str, Any]] = []

    def grow(depth: int) -> int:
        nodes.append({})
        index = len(nodes) - 1
        if depth and draw(st.booleans()):
            feature, threshold = draw(st.sampled_from("pq")), draw(THRESHOLDS)
            nodes[index] = question(feature, threshold, grow(depth - 1), grow(depth - 1))
        else:
            nodes[index] = {"value": draw(st.integers(0, 1))}
        return index

    grow(4)
    return TreeVerifier.model_validate({"nodes": nodes})


def float32(x: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def naive(tree: TreeVerifier, p: float, q: float, index: int = 0) -> bool:
    """The same by recursion."""
    node = tree.nodes[index]
    if node.value is not None:
        return node.value == 1
    assert node.threshold is not None
    assert node.left is not None
    assert node.right is not None
    x = float32({"p": p, "q": q}[str(node.feature)])
    return naive(tree, p, q, node.left if x <= node.threshold else node.right)


@given(trees(), st.floats(0, 1), st.floats(0, 1))
def test_fires_where_the_leaf_says_so(tree: TreeVerifier, p: float, q: float) -> None:
    assert tree.fires(p, q) == naive(tree, p, q)
    if tree.fires(p, q):
        assert tree.contestable(p)


@given(trees(), st.floats(0, 1))
def test_contestable_means_that_some_q_fires(tree: TreeVerifier, p: float) -> None:
    edges = [node.threshold for node in tree.nodes if node.threshold is not None and 0 <= node.threshold <= 1]
    below = [struct.unpack("<f", struct.pack("<I", max(0, bits(x) - 1)))[0] for x in edges]
    above = [struct.unpack("<f", struct.pack("<I", bits(x) + 1))[0] for x in edges]
    candidates = [0.0, 1.0, *edges, *below, *above]
    assert tree.contestable(p) == any(tree.fires(p, q) for q in candidates if 0 <= q <= 1)


def bits(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", abs(x)))[0])


def test_thresholds_are_compared_as_32_bit_floats() -> None:
    tree = TreeVerifier.model_validate({"nodes": [question("p", 0.1, 1, 2), LEAF_1, LEAF_0]})
    assert float32(0.1) > 0.1
    assert not tree.fires(0.1, 0.9)


def test_words_are_the_path() -> None:
    tree = TreeVerifier.model_validate({"nodes": EXAMPLE})
    assert tree.words(0.31, 0.72) == "p 0.31 <= 0.42, q 0.72 > 0.55: replace"
    assert tree.words(0.9, 0.72) == "p 0.9 > 0.42: keep"


@given(trees(), st.floats(0, 1), st.floats(0, 1))
def test_words_are_true(tree: TreeVerifier, p: float, q: float) -> None:
    path, _, verdict = tree.words(p, q).rpartition(": ")
    assert (verdict == "replace") == tree.fires(p, q)
    for step in path.split(", ") if path != "always" else []:
        _, x, sign, threshold = step.split(" ")
        assert (float(x) <= float(threshold)) == (sign == "<=")


def test_there_and_back(tmp_path: Path) -> None:
    tree = TreeVerifier.model_validate({"nodes": EXAMPLE, "trained_on": {"samples": 12}})
    tree.save(tmp_path / "tree.json")
    assert TreeVerifier.load(tmp_path / "tree.json") == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert json.loads((tmp_path / "tree.json").read_text())["kind"] == "tree"


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "at least 1"),
        ([question("p", 0.5, 1, 1), LEAF_0], "2 parents"),
        ([question("p", 0.5, 0, 1), LEAF_0], "node 0: child 0 is not one of the nodes after it"),
        ([question("p", 0.5, 1, 7), LEAF_0], "node 0: child 7 is not one of the nodes after it"),
        ([LEAF_0, LEAF_1], "node 1 has 0 parents"),
        ([question("p", float("nan"), 1, 2), LEAF_0, LEAF_1], "not a finite number"),
        ([{"feature": "p", "value": 1}], "neither a question"),
        ([question("entropy", 0.5, 1, 2), LEAF_0, LEAF_1], "'p' or 'q'"),
        ([LEAF_0] * 10_001, "at most 10000"),
    ],
)
def test_what_is_no_tree_is_refused(nodes: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TreeVerifier.model_validate({"nodes": nodes})


def test_other_schemas_are_refused() -> None:
    with pytest.raises(ValidationError, match="schema_version"):
        TreeVerifier.model_validate({"schema_version": 2, "nodes": EXAMPLE})
