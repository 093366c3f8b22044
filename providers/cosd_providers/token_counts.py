"""Caches for the encodings and the token counts of texts.

A server needs time to encode a long prompt. If the prompt has been counted once, nearly all questions about length can
be answered without another request, because the text after the prompt has at most as many tokens as bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Self, TypeVar

__all__ = ["Counts", "Recent"]

_REMEMBERED = 64
_SPECIAL = 8  # allowance for special tokens around a text, and for changed tokens where two texts join
_CUT = 24  # allowance in tokens for a text that is cut inside a token
_CLOSE = 256  # tokens; a count that is already known to this precision is not stored


_K = TypeVar("_K")
_V = TypeVar("_V")


class Recent(OrderedDict[_K, _V]):
    """A cache of the most recently stored values. Copies start empty, so that they contain no prompt.

    Args:
        most: the greatest number of values.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __reduce__(self) -> tuple[type[Self], tuple[int]]:
        return type(self), (self._most,)

    def keep(self, key: _K, value: _V) -> _V:
        """Store and return a value, and drop the oldest value if there are too many."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
        return value


class Counts:
    """The token counts of recent texts."""

    def __init__(self) -> None:
        self._known = Recent[str, int](_REMEMBERED)

    def exact(self, text: str) -> int | None:
        """The number of tokens of `text`, including special tokens; None if it has not been counted."""
        return self._known.get(text)

    def add(self, text: str, count: int) -> None:
        """Store the number of tokens in `text`."""
        self._known.keep(text, count)

    def seen(self, text: str, count: int) -> None:
        """Store a count from a server's answer, unless it is already known approximately."""
        if not self.fits(text, count + _CLOSE, bytes_too=False):
            self.add(text, count)

    def fits(self, text: str, most: int, *, bytes_too: bool = True) -> bool:
        """Test whether `text` is known to have at most `most` tokens.

        Args:
            text: any text.
            most: a number of tokens.
            bytes_too: whether a small number of bytes is sufficient proof.
        """
        if bytes_too and _size(text) + _SPECIAL <= most:
            return True
        for other, count in reversed(self._known.items()):
            shared = _shared(other, text)
            cut = 0 if shared == len(other) else _CUT
            if count + _size(text[shared:]) + _SPECIAL + cut <= most:
                self._known.move_to_end(other)
                return True
        return False

    def about(self, text: str) -> int | None:
        """Estimate the number of tokens in `text` from a counted text with the same beginning; None if none has it."""
        known = self.exact(text)
        if known is not None:
            return known
        best = max(self._known, key=lambda other: _shared(other, text), default="")
        shared = _shared(best, text)
        if not shared or 4 * shared < 3 * max(len(text), len(best)):
            return None
        return round(self._known[best] * len(text) / len(best))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _shared(one: str, other: str) -> int:
    """Return the length of the common prefix, in characters."""
    low, high = 0, min(len(one), len(other))
    if one[:64] != other[:64]:  # most texts differ early
        high = min(high, 64)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
