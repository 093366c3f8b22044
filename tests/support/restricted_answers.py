"""Structured answers over an engine: improbable words of a format are found."""

from __future__ import annotations

import json
from typing import Any

from cosd_api import Fusion, RuleVerifier

PROMPT = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"
WORDS = ["Zebra Quiz", "yellow", "xylophone 😀", "Zürich 一"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"enum": WORDS}, "sure": {"type": "boolean"}},
    "required": ["word", "sure"],
    "additionalProperties": False,
}


async def check_formats(draft: str, assistant: str) -> None:
    """The answers of two servers together keep to a choice and a schema, and end where these end."""
    async with Fusion(draft=draft, assistant=assistant, verifier=RuleVerifier(alpha=1, beta=1)) as fusion:
        chosen = await fusion.generate(PROMPT, max_tokens=60, response_format=WORDS)
        filled = await fusion.generate(PROMPT, max_tokens=90, response_format=SCHEMA)
    assert (chosen.text in WORDS, chosen.finish_reason) == (True, "stop")
    assert json.loads(filled.text) == filled.parsed
    assert (filled.parsed["word"] in WORDS, type(filled.parsed["sure"])) == (True, bool)
