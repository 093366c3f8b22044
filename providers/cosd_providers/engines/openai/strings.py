"""Whether the strings that a server writes for its tokens may have made a text.

Strings are *bare* where each lost a space at its front if it had one, as those of SentencePiece do where every token is
decoded by itself: two spaces are one, a space is nothing. A text tells by its own spaces what they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from cosd_providers.text import first_character

__all__ = ["endings", "readings", "spells", "unspaced"]

_LOST = "\ufffd".encode()
_PART = 8  # bytes that a token without a string may say before a character that it leaves open, and that never is one
_WINDOW = 256  # bytes in which a token is looked for that says something behind an open character


def readings(string: str, *, bare: bool) -> tuple[bytes, ...]:
    """What a token that says `string` may have added to the text."""
    data = string.encode()
    if not bare:
        return (data,)
    return (b" " + data,) if string.startswith(" ") else (data, b" " + data)


def endings(core: bytes, text: bytes, *, goes_on: bool = True) -> Iterator[int]:
    """Where a token may end that says `core`, behind a character at the front of `text` if it completes one."""
    at = text.find(core, len(first_character(text).encode()) if goes_on else 0)
    while at >= 0:
        yield at + len(core)
        at = text.find(core, at + 1)


def spells(strings: Sequence[str | bytes], text: bytes, *, bare: bool, open_end: bool = False) -> bool:
    """Whether tokens with these strings may have made `text`, or its beginning.

    A token without a string leaves a character open, or is a space where strings are bare; any number of U+FFFD may
    stand for bytes of such tokens that are no character. One with U+FFFD completes a character that others have left
    open, if anything follows the mark.

    Args:
        strings: of the tokens; or their bytes, where they are known.
        text: what has come of it.
        bare: whether strings have lost the space at their front.
        open_end: whether there are more tokens, which are not looked at.
    """
    while text.endswith(_LOST):  # of a character that was cut off
        text = text.removesuffix(_LOST)

    @cache
    def follow(index: int, at: int) -> bool:
        if at == len(text) or index == len(strings):
            return at == len(text) or open_end
        string = strings[index]
        if isinstance(string, bytes):
            return any(follow(index + 1, end) for end in _known(string, text, at))
        _, lost, core = string.rpartition("\ufffd")
        if lost and core:
            return any(follow(index + 1, at + end) for end in endings(core.encode(), text[at : at + _WINDOW]))
        said = readings(core, bare=bare and not lost)
        if any(data and text.startswith(data, at) and follow(index + 1, at + len(data)) for data in said):
            return True
        if any(core and text.startswith(data, at) for data in said):
            return False
        if follow(index + 1, at):  # no character is complete, or a token without text
            return True
        lost_at = text.find(_LOST, at, at + _PART + len(_LOST)) if not core else -1
        if lost_at >= 0 and follow(index, lost_at + len(_LOST)):  # for its bytes, and what it says before them
            return True
        size = len(first_character(text[at:]).encode())
        return bare and not core and size > 1 and follow(index + 1, at + size)

    return follow(0, 0)


def unspaced(text: str, names: Iterable[str]) -> str:
    """A decoded text without a space behind each of these special tokens.

    Some tokenizers of SentencePiece's kind put one before whatever follows a special token, and their decoders leave it
    there: then this is the text that was encoded.
    """
    known = "|".join(sorted({re.escape(name) for name in names}))
    return re.sub(f"({known}) ", r"\1", text) if known else text


def _known(data: bytes, text: bytes, at: int) -> Sequence[int]:
    """Where a token may end that starts at `at` and whose bytes are known."""
    if text.startswith(data, at):
        return [at + len(data)]
    # Bytes that are no character, alone or with those behind them.
    return [at + len(_LOST), at] if text.startswith(_LOST, at) else []
