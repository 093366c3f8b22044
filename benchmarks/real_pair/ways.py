"""The ways that are compared. All of them were chosen before the first run."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.each_method import AT
from cosd_api import CoSD, RuleVerifier
from cosd_api.apps.comparison.contestants import VARIANTS
from cosd_api.extend import Method
from cosd_api.methods import method_named

WAYS: Mapping[str, Method] = {
    "cosd": CoSD(verifier=RuleVerifier(alpha=0.5, beta=0.5)),
    "cosd-0.9-1": CoSD(verifier=RuleVerifier(alpha=0.9, beta=1)),
    **{name: VARIANTS[name] for name in ("cosd-0.97-1", "cosd-1-1", "cosd-match")},
    **{name: method_named(AT.get(name, name)) for name in ("average", "cool", "safe", "cascade", "route", "rerank")},
}
"""The paper's rule, the rule with other thresholds, speculative decoding (`cosd-match` writes its greedy text), and the
other methods. Self-consistency and the random gate are not listed, because `compare` adds them as baselines."""
