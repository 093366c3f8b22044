"""A sample of each method and of each known verifier, as the documents' table of engines makes them."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cosd_api.extend import Method, Verifier
from cosd_providers.contract import Capabilities

_MADE: Mapping[str, Any] = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "generate_methods.py"))

STATED: Mapping[str, Mapping[str, Capabilities]] = _MADE["ENGINES"]
"""The facts that docs/methods.md takes for granted of each engine, by its condition."""
NEEDED: Mapping[str, Mapping[str, Any]] = _MADE["NEEDED"]
"""The settings of methods that have no default."""
sample_method: Callable[[str], Method] = _MADE["sample_method"]
sample_verifier: Callable[[str], Verifier] = _MADE["sample_verifier"]
