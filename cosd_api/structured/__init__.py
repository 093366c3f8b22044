"""Structured answers: texts in a format that the user gives. They require the extra `structured`."""

from __future__ import annotations

from cosd_api.structured.language import Language, Position
from cosd_api.structured.response_format import LarkGrammar, ResponseFormat

__all__ = ["Language", "LarkGrammar", "Position", "ResponseFormat"]
