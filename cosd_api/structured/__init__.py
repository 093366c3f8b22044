"""Structured answers: texts of a language that the user gives. They require the extra `structured`."""

from __future__ import annotations

from cosd_api.structured.language import Language, Position

__all__ = ["Language", "Position"]
