"""Servers that speak OpenAI's protocol. Read `dialects.py` first: how they differ, as data; then `adapter.py`."""

from __future__ import annotations

from cosd_providers.openai.adapter import OpenAICompatible
from cosd_providers.openai.dialects import DIALECTS, Dialect

__all__ = ["DIALECTS", "Dialect", "OpenAICompatible"]
