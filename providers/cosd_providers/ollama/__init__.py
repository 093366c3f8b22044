"""Ollama, by its own route for text. `adapter.py` says what the server does; beside it are what asks and its shapes."""

from __future__ import annotations

from cosd_providers.ollama.adapter import Ollama

__all__ = ["Ollama"]
