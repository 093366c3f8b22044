"""Caches for the encodings and the token counts of texts.

A server needs time to encode a long prompt. If the prompt has been counted once, nearly all questions about length can
be answered without another request, because the text after the prompt has at most as many tokens as bytes.
"""

from __future__ import annotations

import math
import string
from collections import OrderedDict
from typing import Self, TypeVar

_REMEMBERED = 64
_SPECIAL = 8  # allowance for special tokens around a text, and for changed tokens where two texts join
_CUT = 24  # allowance in tokens for a text that is cut inside a token
_CLOSE = 256  # tokens; a count that is already known to this precision is not stored
_JOINT = 4  # tokens that an estimate allows for other tokens where two texts join, or where a text is cut
_MARGIN = 1.25  # ratio of an estimate to the densest text that was counted
_SHORT = 32  # bytes; a text as short as this may have a token for each of them
_SOFT = (string.ascii_letters + " ").encode()


_K = TypeVar("_K")
_V = TypeVar("_V")


class Recent(OrderedDict[_K, _V]):
    """A cache of the most recently stored values. Copies start empty, so that they contain no prompt."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most  # the greatest number of values

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

    def __init__(self, special: int = _SPECIAL) -> None:
        self._known = Recent[str, int](_REMEMBERED)
        self._special = special  # the largest expected number of special tokens around a text
        self._densest = 0.0  # largest number of tokens per weight (`_weight`) in a counted text

    def exact(self, text: str) -> int | None:
        """The number of tokens of `text`, including special tokens; None if it has not been counted."""
        return self._known.get(text)

    def add(self, text: str, count: int) -> None:
        """Store the number of tokens in `text`."""
        self._known.keep(text, count)
        size = _size(text)
        if size == 1:  # a letter is one token, and the others are special
            self._special = min(self._special, count)
        if size > _SHORT:
            self._densest = max(self._densest, count / _weight(text.encode("utf-8", "replace")))

    def seen(self, text: str, count: int) -> None:
        """Store a count from a server's answer, unless it is already known approximately."""
        if not self.fits(text, count + _CLOSE, bytes_too=False):
            self.add(text, count)

    def fits(self, text: str, most: int, *, bytes_too: bool = True) -> bool:
        """Test whether `text` is known to have at most `most` tokens; with `bytes_too`, few bytes are a proof, too."""
        if bytes_too and _size(text) + _SPECIAL <= most:
            return True
        for other, count in reversed(self._known.items()):
            shared = _shared(other, text)
            cut = 0 if shared == len(other) else _CUT
            if count + _size(text[shared:]) + _SPECIAL + cut <= most:
                self._known.move_to_end(other)
                return True
        return False

    def upward(self, text: str) -> tuple[int, bool]:
        """The number of tokens of `text`, and whether it is an estimate.

        An estimate is rather too high than too low. It allows a token for each of the first 32 bytes; after them, for
        each byte of digits, punctuation, indentation and scripts other than ASCII, and for every two ASCII letters or
        spaces. Texts that were counted make it more exact: after its beginning, a text gets the density of the densest
        of them and a quarter more, and what it shares with the beginning of a counted text is not estimated.
        """
        known = self.exact(text)
        if known is not None:
            return known, False
        least = self._special + self._at_most(text)
        for other, count in self._known.items():
            shared = _shared(other, text)
            if shared:
                least = min(least, count + _JOINT + self._at_most(text[shared:]))
        return least, True

    def _at_most(self, text: str) -> int:
        """Estimate the number of tokens of a text without special tokens, upwards."""
        data = text.encode("utf-8", "replace")
        density = self._densest * _MARGIN or 1.0
        return min(len(data), len(data[:_SHORT]) + math.ceil(density * _weight(data[_SHORT:])))

    def resembles(self, text: str) -> bool:
        """Test whether at least three quarters of `text` are the beginning of a counted text of similar length."""
        best = max(self._known, key=lambda other: _shared(other, text), default="")
        return 4 * _shared(best, text) >= 3 * max(len(text), len(best), 1)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _weight(data: bytes) -> float:
    """Return the size of a text in which ASCII letters and spaces between words count half a byte."""
    hard = data.replace(b"  ", b"\n\n").translate(None, _SOFT)
    return (len(data) + len(hard)) / 2


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
