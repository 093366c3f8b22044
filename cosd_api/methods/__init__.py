"""Methods of fusion: short programs on the verbs of `cosd_api.extend`, and the table that finds one by its name."""

from __future__ import annotations

from cosd_api.methods.base import DEFAULT_METHOD, METHODS, Method, method_from_text, method_named
from cosd_api.methods.loader import is_address
from cosd_api.methods.needs import check_draws

__all__ = ["DEFAULT_METHOD", "METHODS", "Method", "check_draws", "is_address", "method_from_text", "method_named"]
