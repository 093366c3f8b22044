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


def links(text: str) -> list[str]:
    """The targets of the links and pictures in a page, outside its blocks."""
    return re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    """The links of a page to files or headings that do not exist; links to other hosts are left out."""
    dead: list[str] = []
    for target in links(page.read_text(encoding="utf-8")):
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if "://" not in target and not (file.exists() and (not fragment or fragment in anchors(file))):
            dead.append(target)
    return dead
