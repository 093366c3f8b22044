"""The ways to answer that each cell compares: methods, verifiers, and settings that are varied."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from benchmarks.lab.protocol import Cell, Size
from cosd_api import CoSD, RuleVerifier, Speculative, SurpriseVerifier
from cosd_api.comparison.contestants import VERIFIERS
from cosd_api.methods.base import Method, method_named

__all__ = ["BACKWARD", "OWN_TREE", "PRINTED_SPECULATIVE", "TREE", "WAYS", "ways_of"]

TREE, OWN_TREE = "cosd-tree", "cosd-tree, own"
"""CoSD with a tree that was learned for the pair: of questions of the task `mixed`, and of the task that is asked."""

PRINTED_SPECULATIVE = "speculative-cosd"
"""Speculative decoding with the test that the CoSD paper prints; `speculative` is exact: it writes the assistant's."""

_NAMED = (
    "cosd",
    "speculative",
    "average",
    "rerank",
    "cool",
    "cool-align",
    "cool+rerank",
    "chared",
    "safe",
    "route",
    "cascade",
    "switch",
    "mixture",
    "nudging",
    "adafuse",
)
_GRID = (0.25, 0.5, 0.75)
_RULES = {
    f"rule {alpha} {beta}": CoSD(verifier=RuleVerifier(alpha=alpha, beta=beta))
    for alpha, beta in product(_GRID, _GRID)
    if (alpha, beta) != (0.5, 0.5)
}
_SURER = {f"rule {alpha} 0.5": CoSD(verifier=RuleVerifier(alpha=alpha, beta=0.5)) for alpha in (0.9, 0.99)}
_SURPRISES = {
    f"cosd-surprise {gamma}": CoSD(verifier=SurpriseVerifier(gamma=gamma)) for gamma in (0.01, 0.05, 0.2, 0.5)
}
_WINDOWS = {f"cosd-surprise, window {window}": CoSD(verifier=SurpriseVerifier(window=window)) for window in (1, 4, 64)}

WAYS: Mapping[str, Method] = {
    **{name: method_named(name) for name in _NAMED},
    PRINTED_SPECULATIVE: Speculative(greedy=False, test="cosd"),
    **VERIFIERS,
    **_RULES,
    **_SURER,
    **_SURPRISES,
    **_WINDOWS,
}
"""All ways to answer but the trees, by name."""

_FEW = ("cosd", "cosd-1-1", "average")
_VERIFIERS = ("cosd", "cosd-1-1", "cosd-surprise", "cosd-diff")
_BY_SCENARIO: Mapping[str, tuple[str, ...]] = {
    "complementary": (
        "cosd",
        "cosd-1-1",
        "cosd-surprise",
        TREE,
        "speculative",
        PRINTED_SPECULATIVE,
        "average",
        "rerank",
        "cool",
    ),
    "capacity": ("cosd", "speculative", PRINTED_SPECULATIVE, "average", "cascade"),
    "tokenizers": ("cosd", "cosd-1-1", "chared", "rerank", "cool"),
    "calibration": (*_VERIFIERS, "average", "rule 0.9 0.5", "cosd-surprise 0.5"),
    "control": _FEW,
}
_USUAL = (*_VERIFIERS, TREE, "speculative", PRINTED_SPECULATIVE, "average", "rerank", "cool")
_MORE: Mapping[str, tuple[str, ...]] = {
    "complementary": (*_NAMED, *_VERIFIERS, *_RULES, OWN_TREE),
    "forgetting": _NAMED,
    "capacity": (*_NAMED, *_VERIFIERS, TREE),
    "tokenizers": (*_NAMED, TREE),
    "calibration": (*_USUAL, *_SURER, *_SURPRISES, *_WINDOWS),
    "control": _VERIFIERS,
}
"""The ways that the full size compares in addition."""

BACKWARD = ("cosd", "cosd-1-1", "cosd-surprise", PRINTED_SPECULATIVE)
"""The ways that are also compared with the two models in each other's place."""


def ways_of(cell: Cell, size: Size) -> tuple[str, ...]:
    """Names of the ways to answer that a cell compares."""
    if size.methods != "all":
        return tuple(str(one) for one in size.methods)
    found = _BY_SCENARIO.get(cell.scenario, _USUAL)
    return tuple(dict.fromkeys((*found, *_MORE.get(cell.scenario, ())))) if size.name == "full" else found
