"""Prediction from the JSON form, the region where it may fire, and invalid trees. Trained ones: tests/training."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cosd_api import SettingError, TreeVerifier
from support import virtual_time
from toys.literal_tasks import Task, check, check_asked, fused, tasks
from toys.trees import EXAMPLE, LEAF_0, LEAF_1, float32, neighbours, question, trees
from toys.unsteady import Order, orders


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
    assert tree.replaces(p, q) == naive(tree, p, q)
    if tree.replaces(p, q):
        assert tree.contestable(p)


@given(trees(), st.floats(0, 1))
def test_contestable_means_that_some_q_fires(tree: TreeVerifier, p: float) -> None:
    edges = [node.threshold for node in tree.nodes if node.threshold is not None]
    candidates = [0.0, 1.0, *(near for edge in edges for near in neighbours(edge))]
    assert tree.contestable(p) == any(tree.replaces(p, q) for q in candidates)


def test_between_thresholds_without_a_32_bit_float_nothing_is_asked() -> None:
    nodes = [question("q", 0.1, 1, 2), LEAF_0, question("q", 0.1 + 1e-9, 3, 4), LEAF_1, LEAF_0]
    assert not TreeVerifier.model_validate({"nodes": nodes}).contestable(0.3)
    nodes[2] = question("q", float32(0.1), 3, 4)
    wider = TreeVerifier.model_validate({"nodes": nodes})
    assert wider.contestable(0.3)
    assert wider.replaces(0.3, 0.1)


@pytest.mark.parametrize("anyio_backend", [virtual_time.BACKEND], ids=["virtual time"])
@given(trees(), tasks(), orders())
async def test_a_fusion_asks_only_what_can_matter(tree: TreeVerifier, task: Task, order: Order) -> None:
    """The reference asks about everything, and writes the same."""
    task = replace(task, verifier=tree)
    servers = task.servers(order)
    result = await fused(task, servers)
    check(result, task.expected())
    if not any(node.value == 1 for node in tree.nodes):
        assert not any(one.calls for one in servers["assistant"])
    check_asked(result, task)


def test_thresholds_are_compared_as_32_bit_floats() -> None:
    tree = TreeVerifier.model_validate({"nodes": [question("p", 0.1, 1, 2), LEAF_1, LEAF_0]})
    assert float32(0.1) > 0.1
    assert not tree.replaces(0.1, 0.9)


def test_words_are_the_path() -> None:
    tree = TreeVerifier.model_validate({"nodes": EXAMPLE})
    assert tree.explain(0.31, 0.72) == "p 0.31 <= 0.42, q 0.72 > 0.55: replace"
    assert tree.explain(0.9, 0.72) == "p 0.9 > 0.42: keep"


@given(trees(), st.floats(0, 1), st.floats(0, 1))
def test_words_are_true(tree: TreeVerifier, p: float, q: float) -> None:
    path, _, verdict = tree.explain(p, q).rpartition(": ")
    assert (verdict == "replace") == tree.replaces(p, q)
    for step in path.split(", ") if path != "always" else []:
        _, x, sign, threshold = step.split(" ")
        assert (float(x) <= float(threshold)) == (sign == "<=")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@given(trees(), st.dictionaries(st.text(max_size=9), JSON, max_size=3))
def test_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, tree: TreeVerifier, trained_on: dict[str, Any]
) -> None:
    tree = tree.model_copy(update={"contexts": "ids", "trained_on": trained_on})
    path = tmp_path_factory.getbasetemp() / "tree.json"
    tree.save(path)
    again = TreeVerifier.load(path)
    assert again == tree
    assert again.model_dump_json() == tree.model_dump_json()
    assert TreeVerifier.model_validate_json(tree.model_dump_json()) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree


# The file.


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    trained_on: dict[str, Any] = {"trained_on": {"seed": 0, "class_weight": None}}
    tree = TreeVerifier.model_validate({"nodes": EXAMPLE, "contexts": "ids", **trained_on})
    tree.save(tmp_path / "tree.json")
    saved = json.loads((tmp_path / "tree.json").read_text())
    assert saved == {"kind": "tree", "schema_version": 2, "nodes": EXAMPLE, "contexts": "ids", **trained_on}


@pytest.mark.parametrize("fields", [{"contexts": "ids"}, {"contexts": "text", "trained_on": {"seed": 0}}, {}])
def test_a_file_may_say_how_its_samples_were_taken(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "tree.json").write_bytes(saved(schema_version=2, **fields))
    assert TreeVerifier.load(tmp_path / "tree.json").contexts == fields.get("contexts")


def test_a_tree_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tree.json"
    TreeVerifier.model_validate({"nodes": [LEAF_1]}).save(path)
    old = path.read_bytes()

    def full(self: Path, text: str, **_: Any) -> int:
        self.write_bytes(text[:9].encode())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            TreeVerifier.model_validate({"nodes": EXAMPLE}).save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_goes_on_pointing_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("tree.json")
    tree = TreeVerifier.model_validate({"nodes": EXAMPLE})
    tree.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert TreeVerifier.load(tmp_path / "tree.json") == tree
    with pytest.raises(IsADirectoryError):
        tree.save(tmp_path)


def saved(**fields: Any) -> bytes:
    return json.dumps({"nodes": [LEAF_0], **fields}).encode()


def with_nodes(*nodes: Any) -> bytes:
    return saved(nodes=nodes)


def leaves(count: int) -> bytes:
    """The same as `with_nodes`, of many leaves at once."""
    return saved(nodes=[]).replace(b"[]", b"[" + b", ".join([json.dumps(LEAF_0).encode()] * count) + b"]")


ASKS = question("p", 0.5, 1, 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not one JSON document; a tree is one JSON file, as cosd train-tree"),
        (b"\x80\x04K\x01.", "it is not UTF-8 text at byte 0"),  # a pickle
        (b"def tree():", "it is not one JSON document"),
        (saved()[:-1], "it is not one JSON document"),
        (b'{"kind":"cosd-samples","schema_version":1}\n{}', "it holds samples; cosd train-tree makes a tree of them"),
        (b"[1, 2]", r"it holds \[1, 2\]; a tree is one JSON file"),
        (b'{"kind": "rule", "alpha": 0.5}', "its kind is 'rule', not 'tree'"),
        (
            saved(schema_version=3),
            "its schema_version is 3, and this version of cosd-api reads 2: update cosd-api, or train",
        ),
        (
            saved(schema_version="1"),
            "its schema_version is '1', and this version of cosd-api reads 2: update cosd-api, or",
        ),
        (saved(contexts="words"), "its contexts is 'words': input should be 'ids' or 'text'"),
        (b"{}", "its nodes is missing"),
        (saved(nodes=7), "its nodes is 7: input should be a valid tuple"),
        (saved(depth=2), "it has an unknown field 'depth'"),
        (saved(trained_on=5), "its trained_on is 5: input should be a valid dictionary"),
        (with_nodes(ASKS, question("q", 0.5, 0, 2), LEAF_0), "node 1: child 0 is not one of the nodes after it"),
        (with_nodes(question("p", 0.5, 1, 3), LEAF_0, LEAF_1), "node 0: child 3 is missing, the nodes are 0 to 2"),
        (with_nodes({**ASKS, "left": -1}, LEAF_0, LEAF_1), "its nodes.0.left is -1: input should be greater"),
        (with_nodes({**ASKS, "left": 10**400}, LEAF_0), r"its nodes.0.left is 10+\.\.\.0+: input should"),
        (with_nodes({**ASKS, "right": True}, LEAF_0, LEAF_1), "its nodes.0.right is True: input should be a valid i"),
        (with_nodes({**ASKS, "threshold": float("nan")}, LEAF_0, LEAF_1), "node 0: its threshold is not a finite"),
        (with_nodes(ASKS, LEAF_0, LEAF_1).replace(b"0.5", b"1e999"), "node 0: its threshold is not a finite number"),
        (with_nodes({**ASKS, "threshold": "NaN"}, LEAF_0, LEAF_1), "its nodes.0.threshold is 'NaN': input should be"),
        (with_nodes({**ASKS, "feature": "entropy"}, LEAF_0, LEAF_1), "its nodes.0.feature is 'entropy': input should"),
        (with_nodes({**ASKS, "gini": 0.1}, LEAF_0, LEAF_1), "it has an unknown field 'nodes.0.gini'"),
        (with_nodes(LEAF_0, {"value": 2}), "its nodes.1.value is 2: input should be 0 or 1"),
        (with_nodes({"value": 0, "left": 1}), "node 0 is neither a question"),
        (with_nodes(7), "its nodes.0 is 7: input should be a valid dictionary"),
        (with_nodes(LEAF_0, LEAF_0), "node 1 has 0 parents instead of one"),
        # What is too large is never made sense of.
        (leaves(10_001), "tuple should have at most 10000 items"),
        (leaves(1_000_000), "it has more than 2 MB"),
        (b'{"nodes":[' + b"1," * 900_000 + b"1]}", "its nodes.0 is 1: input should be a valid dictionary"),
        (b"[" * 1_900_000, "recursion limit"),
        (b'{"nodes":' * 200_000, "recursion limit"),
        (b'{"nodes":' + b"9" * 1_900_000 + b"}", "it is not one JSON document"),
        (b"{" + b",".join(b'"%d":1' % at for at in range(150_000)) + b"}", "its nodes is missing"),
    ],
)
def test_a_file_that_is_no_tree_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "tree.json"
    path.write_bytes(data)
    with pytest.raises(SettingError, match=rf"tree\.json is not a tree: .*{words}") as caught:
        TreeVerifier.load(path)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_the_file_that_the_documentation_shows() -> None:
    text = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    tree = TreeVerifier.model_validate_json(block)
    assert tree.explain(0.5, 0.9) == "p 0.5 <= 0.606, q 0.9 > 0.865: replace"


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is a folder, and a tree is one JSON file"):
        TreeVerifier.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        TreeVerifier.load(tmp_path / "nowhere.json")


def test_a_mark_before_the_text_is_read_over(tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_bytes(b"\xef\xbb\xbf" + saved(schema_version=2, nodes=[ASKS, LEAF_0, LEAF_1]))
    assert len(TreeVerifier.load(tmp_path / "tree.json").nodes) == 3


# The same in a program's own hands.


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "at least 1"),
        ([question("p", 0.5, 1, 1), LEAF_0], "2 parents"),
        ([question("p", 0.5, 0, 1), LEAF_0], "node 0: child 0 is not one of the nodes after it"),
        ([question("p", 0.5, 1, 7), LEAF_0], "node 0: child 7 is missing, the nodes are 0 to 1"),
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
        TreeVerifier.model_validate({"schema_version": 3, "nodes": EXAMPLE})


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.17, "p 0.17 <= 0.7956: replace"),
        (0.79559, "p 0.79559 <= 0.795614: replace"),
        (0.9999, "p 0.9999 > 0.7956: keep"),
        (0.99999999, "p 1 > 0.7956: keep"),  # the nearest number of 32 bits, with which it is compared
    ],
)
def test_words_do_not_round_what_they_compare(p: float, words: str) -> None:
    nodes = [{"feature": "p", "threshold": 0.7956138253, "left": 1, "right": 2}, {"value": 1}, {"value": 0}]
    assert TreeVerifier.model_validate({"nodes": nodes}).explain(p, 0.5) == words


def test_the_outline_has_every_way() -> None:
    nodes: list[dict[str, Any]] = [
        {"feature": "p", "threshold": 0.5, "left": 1, "right": 4},
        {"feature": "q", "threshold": 0.8651, "left": 2, "right": 3},
        {"value": 0},
        {"value": 1},
        {"value": 0},
    ]
    tree = TreeVerifier.model_validate({"nodes": nodes})
    assert tree.outline().splitlines() == ["p <= 0.5", "  q <= 0.8651: keep", "  q > 0.8651: replace", "p > 0.5: keep"]
    assert TreeVerifier.model_validate({"nodes": [{"value": 1}]}).outline() == "always replace"
