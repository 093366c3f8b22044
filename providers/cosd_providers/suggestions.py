"""Suggestions for misspelt names, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_SIMILAR = 0.7  # the least similarity, from 0 to 1: below it, suggestions are absurd, such as `rate` for `promt`


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`; None if no name is similar."""
    found = get_close_matches(name, [*known], 1, _SIMILAR)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error message: `; did you mean 'model'?`, or `; ` and `otherwise` if no name is similar."""
    near = nearest(name, known)
    words = otherwise if near is None else f"did you mean {near!r}?"
    return words and f"; {words}"
