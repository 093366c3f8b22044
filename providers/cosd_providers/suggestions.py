"""The known name that a misspelt one probably means, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest", "suggestion"]

_SIMILAR = 0.7  # of 1; below it guesses are absurd, such as `rate` for `promt`


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to `name`; None if none is similar."""
    found = get_close_matches(name, [*known], 1, _SIMILAR)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of an error message: `; did you mean 'model'?`, or else the other words, after a semicolon, too."""
    near = nearest(name, known)
    words = otherwise if near is None else f"did you mean {near!r}?"
    return words and f"; {words}"
