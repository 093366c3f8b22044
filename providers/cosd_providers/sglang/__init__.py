"""SGLang. Read `adapter.py` first: what is known of the server, and the provider."""

from __future__ import annotations

from cosd_providers.sglang.adapter import Sglang

__all__ = ["Sglang"]
