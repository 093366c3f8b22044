"""Creation of a page's elements, and formatting of its texts.

A page is built as a tree of elements, never by joining strings, so that the serializer escapes all text that comes from
models and servers.
"""

from __future__ import annotations

import json
import math
import unicodedata
from functools import lru_cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | None

#: Format characters that join letters or emoji; they are harmless, because they do not change the text's direction.
_JOINERS = "\u200c\u200d"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_IN_SCRIPTS = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def element(tag: str, classes: str | None = None, /, *children: Child, **attributes: str | float | None) -> Element:
    """Make an element with its children; attributes that are None are omitted, and `data_t` becomes `data-t`."""
    given = {"class": classes, **attributes}
    made = Element(tag, {name.replace("_", "-"): _value(value) for name, value in given.items() if value is not None})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif child and len(made):
            made[-1].tail = (made[-1].tail or "") + child
        elif child:
            made.text = (made.text or "") + child
    return made


def _value(value: str | float) -> str:
    # One decimal is precise enough for coordinates, and halves the size of the page.
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def html(root: Element) -> str:
    """Serialize a document."""
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"


def script_json(value: object) -> str:
    """Format a value as JSON for a script element; characters that could end the element are escaped."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPTS)


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


def name_of(text: str, *, end: bool) -> str:
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
