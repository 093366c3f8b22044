"""The ways to answer that each cell compares: methods, verifiers, and settings that are varied."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from benchmarks.lab.protocol import Cell, Size
from cosd_api import CoSD, RuleVerifier, SurpriseVerifier
from cosd_api.comparison.contestants import VERIFIERS
from cosd_api.methods.base import Method, method_named

__all__ = ["BACKWARD", "OWN_TREE", "TREE", "WAYS", "ways_of"]

TREE, OWN_TREE = "cosd-tree", "cosd-tree, own"
"""CoSD with a tree that was learned for the pair: of questions of the task `mixed`, and of the task that is asked."""

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
    **VERIFIERS,
    **_RULES,
    **_SURER,
    **_SURPRISES,
    **_WINDOWS,
}
"""All ways to answer but the trees, by name."""

_VERIFIERS = ("cosd", "cosd-1-1", "cosd-surprise", "cosd-diff")
_MAIN = (*_VERIFIERS, TREE, "speculative", "average", "rerank", "cool")
_BY_SCENARIO: Mapping[str, tuple[str, ...]] = {
    "complementary": (*_MAIN, "cascade"),
    "forgetting": _MAIN,
    "capacity": ("cosd", TREE, "speculative", "average", "cascade"),
    "tokenizers": ("cosd", "cosd-1-1", TREE, "chared", "safe", "rerank", "cool", "cool-align", "cool+rerank"),
    "calibration": (*_MAIN, *_SURER, *_SURPRISES, *_WINDOWS),
    "robustness": _MAIN,
    "control": (*_VERIFIERS, "average"),
}
_MORE: Mapping[str, tuple[str, ...]] = {"a-b": (OWN_TREE, *_RULES)}

BACKWARD = ("cosd", "cosd-1-1", "cosd-surprise")
"""The ways that are also compared with the two models in each other's place."""


def ways_of(cell: Cell, size: Size) -> tuple[str, ...]:
    """Names of the ways to answer that a cell compares; in the full size all methods, but in controls."""
    if size.methods != "all":
        return tuple(str(one) for one in size.methods)
    found = (*_BY_SCENARIO[cell.scenario], *_MORE.get(cell.name, ()))
    if size.name == "full" and cell.scenario != "control":
        found = (*found, *_NAMED)
    return tuple(dict.fromkeys(found))
