"""Servers that speak OpenAI's protocol. Read `dialects.py` first: how they differ, as data; then `adapter.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_providers.engines.openai.dialects import DIALECTS, Dialect

if TYPE_CHECKING:
    from cosd_providers.engines.openai.adapter import OpenAICompatible

__all__ = ["DIALECTS", "Dialect", "OpenAICompatible"]


def __getattr__(name: str) -> object:
    """Import the adapter at its first use: `connect` needs the dialects alone."""
    if name == "OpenAICompatible":
        from cosd_providers.engines.openai.adapter import OpenAICompatible  # noqa: PLC0415

        return OpenAICompatible
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
