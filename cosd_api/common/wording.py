"""Helpers that word reports and messages in English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

__all__ = ["counted", "in_words", "paragraph", "with_article", "with_notes"]

_WIDTH = 80


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun: `1 place`, `2,000 places`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def in_words(several: Sequence[str]) -> str:
    """The names as a list within a sentence: `a`, `a and b`, `a, b and c`."""
    *most, last = several
    return f"{', '.join(most)} and {last}" if most else last


def paragraph(words: str) -> str:
    """Wrap a text into lines of at most 80 characters."""
    return fill(words, _WIDTH, break_on_hyphens=False)


def with_article(name: str) -> str:
    """The name of a model, with an article if a sentence needs one: `the draft`, `the assistant`, `assistant 1`."""
    return name if name[-1].isdigit() else f"the {name}"


def with_notes(report: str, warnings: Iterable[str]) -> str:
    """The report, followed by a paragraph for each warning."""
    return "\n\n".join([report, *(paragraph(f"Note: {one}{'' if one.endswith('?') else '.'}") for one in warnings)])
