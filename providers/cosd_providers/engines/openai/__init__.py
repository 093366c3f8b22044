"""Servers that speak OpenAI's protocol. First read `dialects.py`, which lists their differences, then `adapter.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_providers.deferred import deferred
from cosd_providers.engines.openai.dialects import DIALECTS, Dialect

if TYPE_CHECKING:
    from cosd_providers.engines.openai.adapter import OpenAICompatible

__all__ = ["DIALECTS", "Dialect", "OpenAICompatible"]

if not TYPE_CHECKING:
    __getattr__ = deferred(__name__, {"OpenAICompatible": "cosd_providers.engines.openai.adapter"})
