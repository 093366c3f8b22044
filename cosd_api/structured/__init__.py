"""Structured answers: texts in a format that the user gives. They require the extra `structured`."""

from __future__ import annotations

from cosd_api.structured.language import AllowedNext, Language
from cosd_api.structured.response_format import LarkGrammar, ResponseFormat

__all__ = ["AllowedNext", "Language", "LarkGrammar", "ResponseFormat"]
