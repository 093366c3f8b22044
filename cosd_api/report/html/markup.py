"""Elements of the page. Whatever a model or a server said goes in as text: the serializer escapes it.

Trees of elements, not strings that are put together: there is no place at which escaping could be forgotten.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

__all__ = ["Child", "counted", "element", "html", "in_line", "name_of", "prob", "script_json", "seconds", "visible"]

Child = Element | str | None

#: Format characters that writing needs: they join letters and emoji, and turn no text around.
_JOINERS = "\u200c\u200d"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_IN_SCRIPTS = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def element(tag: str, classes: str | None = None, /, *children: Child, **attributes: str | float | None) -> Element:
    """An element with its children; an attribute of None is left out, and `data_t` is written `data-t`."""
    given = {"class": classes, **attributes}
    made = Element(tag, {name.replace("_", "-"): _value(value) for name, value in given.items() if value is not None})
    append(made, children)
    return made


def append(parent: Element, children: Iterable[Child]) -> None:
    """More children of an element, behind those that it has."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child and len(parent):
            parent[-1].tail = (parent[-1].tail or "") + child
        elif child:
            parent.text = (parent.text or "") + child


def _value(value: str | float) -> str:
    # A tenth of a pixel is enough for a drawing, and half the size.
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def html(root: Element) -> str:
    """The document."""
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"


def script_json(value: object) -> str:
    """JSON that can stand in a script element, which nothing in it can end."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPTS)


def visible(text: str) -> str:
    r"""Text as a page may show it: what would turn it around, hide in it or steer it stands as `\u202e`.

    Line ends and tabs stay as they are.
    """
    return "".join(map(_shown, text))


@lru_cache(4096)
def _shown(char: str) -> str:
    if unicodedata.category(char) not in _HIDDEN or char in "\n\t" or char in _JOINERS:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def in_line(text: str) -> str:
    r"""Visible text that breaks no line: line ends as `\n`."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def name_of(text: str, *, end: bool) -> str:
    """A token by itself, in quotes: a space before it can be seen."""
    return f"“{in_line(text)}”" if text or not end else "end of sequence"


def prob(value: float | None) -> str:
    """A probability for people. What is nearly certain is not called certain."""
    if value is None or math.isnan(value):
        return "not told"
    short = f"{value:.3f}"
    if short == "1.000" and value < 1:
        return "> 0.999"
    if short == "0.000" and value > 0:
        return "< 0.001"
    return short


def seconds(value: float | None) -> str:
    """A time, in milliseconds below a second."""
    if value is None:
        return "–"
    if value < 0.9995:
        return f"{value * 1000:.{0 if value >= 0.00995 else 1}f} ms"
    return f"{value:.2f} s" if value < 99.995 else f"{value:,.0f} s"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
