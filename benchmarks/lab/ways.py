"""The ways to answer that are compared in each cell: methods, verifiers, and variations of settings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from benchmarks.lab.protocol import Cell, Size
from cosd_api import AgreementVerifier, Average, CoSD, MatchVerifier, RuleVerifier, Speculative, SurpriseVerifier
from cosd_api.comparison.contestants import VARIANTS
from cosd_api.methods.base import Method, method_named

__all__ = ["BACKWARD", "GRID", "PRINTED_SPECULATIVE", "TREE", "WAYS", "ways_of"]

TREE = "cosd-tree"
"""CoSD with a tree that was learned for the pair from three questions of the task `mixed`."""

PRINTED_SPECULATIVE = "speculative-cosd"
"""Speculative decoding with the test printed in the CoSD paper; `speculative` writes exactly the assistant's text."""

_METHODS = (
    "speculative",
    "average",
    "rerank",
    "cool",
    "safe",
    "route",
    "cascade",
    "switch",
    "mixture",
    "nudging",
    "adafuse",
)
_NAMED = ("cosd", *_METHODS, "chared")
_LABELLED = {
    "cosd": CoSD(verifier=RuleVerifier.paper()),
    "speculative": CoSD(verifier=MatchVerifier()),
    "mixture": Average(temperature=1),
    "cosd-chow": CoSD(verifier=AgreementVerifier()),
}
"""Ways by name. The names date from the first run."""
_THRESHOLDS = (0.25, 0.5, 0.75, 1.0)
GRID = {
    f"rule {alpha} {beta}": CoSD(verifier=RuleVerifier(alpha=alpha, beta=beta))
    for alpha, beta in product(_THRESHOLDS, _THRESHOLDS)
    if alpha != beta or alpha not in (0.5, 1.0)
}
"""Ways with other thresholds, in addition to the paper's 0.5 and to `cosd-1-1`."""
_SURER = {f"rule {alpha} 0.5": CoSD(verifier=RuleVerifier(alpha=alpha, beta=0.5)) for alpha in (0.9, 0.99)}
_SURPRISES = {
    f"cosd-surprise {gamma}": CoSD(verifier=SurpriseVerifier(gamma=gamma)) for gamma in (0.01, 0.05, 0.2, 0.5)
}
_WINDOWS = {f"cosd-surprise, window {window}": CoSD(verifier=SurpriseVerifier(window=window)) for window in (1, 4, 64)}

WAYS: Mapping[str, Method] = {
    **{name: method_named(name) for name in _NAMED if name not in _LABELLED},
    **_LABELLED,
    PRINTED_SPECULATIVE: Speculative(temperature=1, test="cosd"),
    **VARIANTS,
    **GRID,
    **_SURER,
    **_SURPRISES,
    **_WINDOWS,
}
"""All ways to answer except trees, by name."""

_VERIFIERS = ("cosd", "cosd-1-1", "cosd-surprise", "cosd-diff")
_COMPLEMENTARY = ("cosd", "cosd-1-1", "cosd-surprise", TREE, PRINTED_SPECULATIVE, "average")
_BY_SCENARIO: Mapping[str, tuple[str, ...]] = {
    "complementary": _COMPLEMENTARY,
    "capacity": ("cosd", "speculative", PRINTED_SPECULATIVE, "average", "cascade"),
    "tokenizers": ("cosd", "cosd-1-1", "chared", "rerank", "cool"),
    "three models": ("cosd", "cosd-1-1", "average", "rerank"),
    "calibration": ("cosd", "cosd-1-1", "cosd-surprise", "average", "rule 0.9 0.5"),
    "control": ("cosd", "cosd-1-1"),
}
_USUAL = ("cosd", "cosd-1-1", TREE, PRINTED_SPECULATIVE, "average")
_MORE: Mapping[str, tuple[str, ...]] = {
    "complementary": (*_VERIFIERS, "cosd-chow", TREE, *_METHODS),
    "capacity": (*_METHODS, TREE),
    "tokenizers": ("cosd-surprise", TREE, "cool+rerank", "cool-align", "safe", "switch"),
    "three models": (TREE, "cool", "cool+rerank", "cool-align"),
    "calibration": (*_VERIFIERS, "rerank", *_SURER, "cosd-surprise 0.5"),
    "control": (*_VERIFIERS, "average"),
}
"""The additional ways of the full size."""

BACKWARD = ("cosd", "cosd-1-1")
"""The ways that are also compared with draft and assistant swapped."""


def ways_of(cell: Cell, size: Size, seed: int) -> tuple[str, ...]:
    """The names of the ways that are compared in a cell; in the full size, the first seed has additional ways."""
    if size.methods != "all":
        return tuple(str(one) for one in size.methods)
    found = _BY_SCENARIO.get(cell.scenario, _USUAL)
    if cell.name == "c-d":
        found = (*found, "rerank")
    more = _MORE.get(cell.scenario, ()) if size.name == "full" and seed == size.seeds[0] else ()
    return tuple(dict.fromkeys((*found, *more)))
