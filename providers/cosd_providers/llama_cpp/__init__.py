"""llama.cpp's own server. Read `adapter.py` first: what the server was seen to do, and the provider."""

from __future__ import annotations

from cosd_providers.llama_cpp.adapter import LlamaCpp

__all__ = ["LlamaCpp"]
