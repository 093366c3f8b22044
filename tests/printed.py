"""Code blocks of the pages, which tests run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def section(page: Path, heading: str) -> str:
    """The part of a page below a heading of the second level, up to the next one."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, heading
    return rest.partition("\n## ")[0]


def programs(text: str) -> list[str]:
    """The blocks of Python in a text."""
    return [block for language, block in FENCE.findall(text) if language == "python"]


def executed(*blocks: str) -> dict[str, Any]:
    """The names that blocks define, executed one after the other."""
    names: dict[str, Any] = {"__name__": "printed"}
    for block in blocks:
        exec(compile(block, "<the text>", "exec", dont_inherit=True), names)
    return names
