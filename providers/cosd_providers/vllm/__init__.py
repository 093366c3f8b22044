"""vLLM. Read `adapter.py` first: what the server was seen to do, and the provider."""

from __future__ import annotations

from cosd_providers.vllm.adapter import Vllm

__all__ = ["Vllm"]
