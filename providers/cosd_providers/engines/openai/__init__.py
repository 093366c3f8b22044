"""Servers that speak OpenAI's protocol. Read `dialects.py` first: how they differ, as data; then `adapter.py`."""

from __future__ import annotations

from cosd_providers.engines.openai.adapter import OpenAICompatible
from cosd_providers.engines.openai.dialects import DIALECTS, Dialect

__all__ = ["DIALECTS", "Dialect", "OpenAICompatible"]
