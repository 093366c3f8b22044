"""How reports are worded: their width, their notes, and what is said of data in more than one place."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill

__all__ = ["WIDTH", "about_dropped", "counted", "filled", "one_sided", "with_notes"]

WIDTH = 80
"""Of a report, in columns."""


def filled(words: str) -> str:
    """A paragraph."""
    return fill(words, WIDTH, break_on_hyphens=False)


def with_notes(report: str, warnings: Iterable[str]) -> str:
    """A report, and below it what speaks against it."""
    return "\n\n".join([report, *(filled(f"Note: {one}{'' if one.endswith('?') else '.'}") for one in warnings)])


def counted(number: int, what: str) -> str:
    """`1 place`, `2 places`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def about_dropped(labelled: int, dropped: int) -> list[str]:
    """What speaks against data where neither model is right at most places where they differ."""
    if dropped <= labelled:
        return []
    where = f"at {dropped} of {counted(labelled + dropped, 'place')} where the models differ neither is right"
    return [f"{where}: check that the answers are written as a model would write them, leading space included"]


def one_sided(draft_right: int, assistant_right: int) -> str | None:
    """What labels lack that are all of one kind, in words; None where there are both, or none."""
    right = draft_right + assistant_right
    if not right or (draft_right and assistant_right):
        return None
    samples = "the only labelled sample is" if right == 1 else f"all {right} labelled samples are"
    mine, other = ("draft", "assistant") if draft_right else ("assistant", "draft")
    return (
        f"{samples} the {mine}'s: the {other} was never right where the {mine} was wrong; "
        f"add examples that the {other} can answer and the {mine} cannot (if there are none, the {mine} alone is "
        "as good)"
    )
