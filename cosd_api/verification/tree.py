"""Tree-based verification: the decision tree `T(p, q)` of section 3.2 of the CoSD paper, read from JSON.

The tree is evaluated without scikit-learn. The results agree with scikit-learn's `predict`, which converts the inputs
to 32-bit floats and compares them with 64-bit thresholds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, JsonValue, model_validator

from cosd_api.common.wording import counted
from cosd_api.verification.trained_file import TrainedFile, write_whole

MAX_NODES = 10_000

_FILE = TrainedFile(
    thing="a tree",
    kind="tree",
    command="cosd train-tree",
    most_bytes=2_000_000,  # enough for `MAX_NODES` nodes in indented JSON, and a description of their origin
    version=2,
)
_Index = Annotated[int, Field(ge=0, lt=MAX_NODES)]


class TreeNode(BaseModel):
    """One node of a tree: either a question (`feature`, `threshold`, `left` and `right`) or a leaf (`value`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    feature: Literal["p", "q"] | None = None
    threshold: float | None = None
    left: _Index | None = None
    right: _Index | None = None
    value: Literal[0, 1] | None = None


class TreeVerifier(BaseModel):
    """Replaces a draft token if a trained decision tree says so: `T(p, q) = 1` (section 3.2 of the CoSD paper).

    Attributes:
        nodes: the nodes of the tree, at most 10,000. The root is first, and every child comes after its parent. At a
            question, the path continues at `left` if the feature is at most the threshold, otherwise at `right`.
        contexts: the form in which models received the context when p and q of the training samples were measured.
            `"ids"` means that every model received its own ids, as in a fusion. `"text"` means that some models
            received text, because their servers accept no ids. None means that the form is unknown.
        trained_on: the origin of the tree, such as the models, the hash and counts of the data, and versions; any JSON
            object.

    Raises:
        pydantic.ValidationError: the nodes are not a tree, or a threshold is not a number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    kind: Literal["tree"] = "tree"
    schema_version: Literal[2] = 2
    nodes: Annotated[tuple[TreeNode, ...], FailFast()] = Field(min_length=1, max_length=MAX_NODES)
    contexts: Literal["ids", "text"] | None = None
    trained_on: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        parents = [0] * len(self.nodes)
        for index, node in enumerate(self.nodes):
            question = (node.feature, node.threshold, node.left, node.right)
            if node.value is not None and question == (None,) * 4:
                continue
            if node.value is not None or None in question:
                raise ValueError(
                    f"node {index} is neither a question (feature, threshold, left, right) nor an answer (value)"
                )
            if not math.isfinite(node.threshold or 0.0):
                raise ValueError(f"node {index}: its threshold is not a finite number")
            for child in (node.left, node.right):
                if child is None or child >= len(self.nodes):
                    raise ValueError(
                        f"node {index}: child {child} is missing, the nodes are 0 to {len(self.nodes) - 1}"
                    )
                if child <= index:
                    words = f"child {child} is not one of the nodes after it"
                    raise ValueError(f"node {index}: {words}, and a tree that leads back to a node has no end")
                parents[child] += 1
        for index, count in enumerate(parents[1:], 1):
            if count != 1:
                raise ValueError(f"node {index} has {count} parents instead of one")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tree from its JSON file.

        Raises:
            OSError: the file cannot be read.
            SettingError: the file is not a tree of this schema; the message names the file and the problem.
        """
        return _FILE.load(cls, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the tree as a JSON file. The file is written completely or not at all.

        Raises:
            OSError: the file cannot be written; an existing file is unchanged.
        """
        write_whole(Path(path), self.model_dump_json(indent=2, exclude_none=True) + "\n")

    @property
    def condition(self) -> str:
        """The condition for a replacement, in words."""
        return f"a decision tree of {counted(len(self.nodes), 'node')}"

    def replaces(self, p: float, q: float) -> bool:
        """Return True if `T(p, q) = 1`."""
        *_, last = self._path(_float32(p), _float32(q))
        return last.value == 1

    def contestable(self, p: float) -> bool:
        """Return True if, for this `p`, some `q` in [0, 1] leads to a leaf with the value 1."""
        p32 = _float32(p)
        # Each entry is a node and the range of q that leads to it: above `low`, and at most `high`.
        open_nodes = [(0, -1.0, 1.0)]
        while open_nodes:
            index, low, high = open_nodes.pop()
            node = self.nodes[index]
            if node.value is not None:
                if node.value == 1:
                    return True
                continue
            assert node.threshold is not None and node.left is not None and node.right is not None
            if node.feature == "p":
                open_nodes.append((node.left if p32 <= node.threshold else node.right, low, high))
                continue
            for child, lower, upper in (
                (node.left, low, min(high, node.threshold)),
                (node.right, max(low, node.threshold), high),
            ):
                if upper >= 0 and _float32_at_most(upper) > lower:
                    open_nodes.append((child, lower, upper))
        return False

    def explain(self, p: float, q: float) -> str:
        """Describe the path through the tree, for example `"p 0.31 <= 0.42, q 0.72 > 0.55: replace"`."""
        steps: list[str] = []
        last = self.nodes[0]
        for last in self._path(_float32(p), _float32(q)):
            if last.threshold is not None:
                steps.append(f"{last.feature} {_compared(_float32(p if last.feature == 'p' else q), last.threshold)}")
        return f"{', '.join(steps) or 'always'}: {'replace' if last.value == 1 else 'keep'}"

    def outline(self) -> str:
        """Describe the tree in indented lines, one per outcome of a question, for example `"p <= 0.42: replace"`."""
        answers = {0: "keep", 1: "replace", None: None}
        lines: list[str] = []
        ways = [(0, ">", ""), (0, "<=", "")]
        while ways:
            index, sign, indent = ways.pop()
            node = self.nodes[index]
            child = node.left if sign == "<=" else node.right
            if node.threshold is None or child is None:
                return f"always {answers[node.value]}"
            answer = answers[self.nodes[child].value]
            lines.append(f"{indent}{node.feature} {sign} {node.threshold:.4g}{f': {answer}' if answer else ''}")
            if answer is None:
                ways += [(child, ">", f"{indent}  "), (child, "<=", f"{indent}  ")]
        return "\n".join(lines)

    def _path(self, p: float, q: float) -> Iterator[TreeNode]:
        node = self.nodes[0]
        yield node
        while node.threshold is not None:
            child = node.left if (p if node.feature == "p" else q) <= node.threshold else node.right
            assert child is not None  # checked by _is_a_tree
            node = self.nodes[child]
            yield node


def _compared(x: float, threshold: float) -> str:
    """Describe a comparison with just enough digits to show its outcome; only a probability of 1 is shown as 1."""
    below = x <= threshold
    left, right = repr(x), repr(threshold)
    for digits in (4, 6, 9):
        short, bound = f"{x:.{digits}g}", f"{threshold:.{digits}g}"
        shown = float(short)
        if (
            (shown <= float(bound)) == below
            and (shown == float(bound)) == (x == threshold)
            and (shown == 1) == (x == 1)
        ):
            left, right = short, bound
            break
    return f"{left} {'<=' if below else '>'} {right}"


def _float32(x: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return rounded


def _float32_at_most(x: float) -> float:
    """Return the largest 32-bit float that is at most `x`, which must be at least 0."""
    rounded = _float32(x)
    if rounded <= x:
        return rounded
    below: float = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", rounded))[0] - 1))[0]
    return below
