"""Hugging Face TGI. Read `adapter.py` first: what is known of the server, and the provider."""

from __future__ import annotations

from cosd_providers.tgi.adapter import Tgi

__all__ = ["Tgi"]
