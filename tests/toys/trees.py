"""Trees for tests: their nodes by hand, and random ones."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from cosd_api import TreeVerifier

LEAF_0: dict[str, Any] = {"value": 0}
LEAF_1: dict[str, Any] = {"value": 1}

THRESHOLDS = st.one_of(
    st.sampled_from((0.0, 0.25, 0.5, 1.0)),
    st.integers(0, 16).map(lambda count: count / 16),  # what toy models' probabilities are made of
    st.floats(-0.5, 1.5),
)


def question(feature: str, threshold: float, left: int, right: int) -> dict[str, Any]:
    """A node that asks."""
    return {"feature": feature, "threshold": threshold, "left": left, "right": right}


EXAMPLE = [question("p", 0.42, 1, 4), question("q", 0.55, 2, 3), LEAF_0, LEAF_1, LEAF_0]


@st.composite
def trees(draw: st.DrawFn) -> TreeVerifier:
    """Any tree of up to four questions in a row."""
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
    """The nearest 32-bit float."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def bits(x: float) -> int:
    """The bits of that of |x|."""
    return int(struct.unpack("<I", struct.pack("<f", abs(x)))[0])


def neighbours(x: float) -> list[float]:
    """`x`, the nearest 32-bit float, and the ones below and above that, in [0, 1]."""
    near = bits(x)
    found = [struct.unpack("<f", struct.pack("<I", one))[0] for one in (max(0, near - 1), near, near + 1)]
    return [float(one) for one in (x, *found) if 0 <= one <= 1]
