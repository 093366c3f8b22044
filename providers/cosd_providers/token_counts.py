"""How many tokens texts have, as far as that is known without counting again.

Encoding a long prompt costs its server time, and the answer is long. One count per prompt is enough for nearly all
that is asked about it: what follows has at most as many tokens as bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

__all__ = ["Counts"]

_REMEMBERED = 64
_SPECIAL = 8  # special tokens that may stand around a text; where two texts meet, tokens may fall differently, too
_CUT = 24  # more tokens than before that a text may have which is cut within one of its tokens
_CLOSE = 256  # tokens: what is known that closely needs no place of its own


class Counts:
    """The numbers of tokens of the last texts. Copies have none: no prompt goes with them."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"_known": OrderedDict()}

    def exact(self, text: str) -> int | None:
        """The number of tokens of `text`, special ones too; None where it was not counted."""
        return self._known.get(text)

    def add(self, text: str, count: int) -> None:
        """Keeps what was counted."""
        self._known[text] = count
        self._known.move_to_end(text)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    def seen(self, text: str, count: int) -> None:
        """Keeps what an answer told beside the rest, unless it is about as much as is known."""
        if not self.fits(text, count + _CLOSE, bytes_too=False):
            self.add(text, count)

    def fits(self, text: str, most: int, *, bytes_too: bool = True) -> bool:
        """Whether `text` surely has at most `most` tokens.

        Args:
            text: any text.
            most: tokens.
            bytes_too: whether its number of bytes is enough to know it.
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
        """About how many tokens `text` has, by one that was counted and is mostly the same; None without such."""
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
    """How many characters both begin with."""
    low, high = 0, min(len(one), len(other))
    if one[:64] != other[:64]:  # most texts that differ do so early
        high = min(high, 64)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
