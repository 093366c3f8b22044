"""Words for texts, probabilities and times, which can be shown safely on a page."""

from __future__ import annotations

import math
import unicodedata
from functools import lru_cache

__all__ = ["in_line", "name_of", "prob", "seconds", "visible"]

#: Format characters that join letters or emoji; they are harmless, because they do not change the text's direction.
_JOINERS = "\u200c\u200d"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def visible(text: str) -> str:
    r"""Escape control and hidden characters, such as `\u202e`; line ends and tabs are kept."""
    return "".join(map(_shown, text))


@lru_cache(4096)
def _shown(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN or char in "\n\t" or char in _JOINERS:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def in_line(text: str) -> str:
    r"""Escape hidden characters, and write line ends as `\n`, so that the text fits in one line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def name_of(text: str, *, end: bool = True) -> str:
    """Put a token in quotes, so that spaces can be seen; an empty text is `end of sequence` if `end` is set."""
    return f"“{in_line(text)}”" if text or not end else "end of sequence"


def prob(value: float | None) -> str:
    """Format a probability with three decimals; 1.000 and 0.000 appear only if they are exact."""
    if value is None or math.isnan(value):
        return "unknown"
    short = f"{value:.3f}"
    if short == "1.000" and value < 1:
        return "> 0.999"
    if short == "0.000" and value > 0:
        return "< 0.001"
    return short


def seconds(value: float | None) -> str:
    """Format a time in seconds, or in milliseconds if it is shorter than one second."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.{0 if value >= 0.00995 else 1}f} ms"
    return f"{value:.2f} s" if value < 99.995 else f"{value:,.0f} s"
