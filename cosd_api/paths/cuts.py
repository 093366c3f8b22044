"""Places where a text may be cut: lookaheads, starts of words, and safe cuts."""

from __future__ import annotations

import re

from cosd_api.alignment import is_unspaced
from cosd_providers.text import first_character

FARTHEST = 64
"""Maximum number of characters in a lookahead, and in a unit."""
_WITHOUT_SPACES = 32  # maximum number of characters in a lookahead without white space
_WINDOW = 4 * FARTHEST  # enough bytes for `FARTHEST` characters
_SPACES = (
    rb"\xc2[\x85\xa0]",
    rb"\xe1\x9a\x80",
    rb"\xe2\x80[\x80-\x8a\xa8\xa9\xaf]",
    rb"\xe2\x81\x9f",
    rb"\xe3\x80\x80",
)
"""White space other than ASCII, in UTF-8."""
_VISIBLE = (  # the first bytes of a character show whether it is visible
    rb"[\x21-\x7f\xc3-\xe0\xe4-\xff]|\xc2[^\x85\xa0]|\xe1(?:[^\x9a]|\x9a[^\x80])"
    rb"|\xe2(?:[^\x80\x81]|\x80[^\x80-\x8a\xa8\xa9\xaf]|\x81[^\x9f])|\xe3(?:[^\x80]|\x80[^\x80])"
)
_SYMBOLS = (rb"\xc2[\x80-\xbf]", rb"\xc3[\x97\xb7]", rb"\xe2(?:\x86[\x90-\xbf]|[\x87-\xaf][\x80-\xbf])")
"""Symbols outside ASCII, in UTF-8: real vocabularies hold tokens such as `> </` and ` = `, across the space."""
SAFE_CUT = re.compile(
    rb"(?<=[^\s\x00-\x20$+<=>^|~\x7f])"
    + b"".join(b"(?<!" + one + b")" for one in (*_SPACES, *_SYMBOLS))
    + b"(?= (?:"
    + _VISIBLE
    + b"))",
    re.DOTALL,
)
"""A single space between two visible characters; see `is_safe_cut`."""
_INSIDE = bytes(range(0x80, 0xC0))  # UTF-8 bytes that continue a character


def look(text: bytes, at: int, *, ended: bool, cuts: bool = False) -> int | None:
    """The end of a place's lookahead, which is the text that can affect how the text before the place is encoded.

    The lookahead ends after the first character of the second word that begins after the place, after 64 characters (or
    32, if none of them is white space), or at the end of the answer. If every safe cut is a token boundary, it ends at
    the first safe cut that is not before the place, with the character after the space.

    Args:
        text: the draft's text, which ends with a whole character.
        at: byte offset of the place, which lies between two characters.
        ended: whether the draft has ended the answer after the text.
        cuts: whether every safe cut is a token boundary, whatever follows; see `Encoder`.

    Returns:
        None if the draft has not written far enough.
    """
    characters = text[at : at + _WINDOW].decode("utf-8", "surrogateescape")
    end, words, spaces, before = at, 0, False, "."
    for count, character in enumerate(characters, 1):
        start, end = end, end + len(character.encode("utf-8", "surrogateescape"))
        if character.isspace():
            spaces = True
        else:
            words += before.isspace()
        if cuts and count > 1 and before == " " and is_safe_cut(text, start - 1):
            return end
        before = character
        if words == 2 or count == FARTHEST or (count == _WITHOUT_SPACES and not spaces):
            return end
    return len(text) if ended else None


def word_starts(text: bytes, at: int) -> bool:
    """Test whether a word starts at a place between characters. In scripts without spaces, each character is a word."""
    here = first_character(text[at : at + 4])
    return not here or here.isspace() or text[:at][-4:].decode("utf-8", "ignore")[-1:].isspace() or is_unspaced(here)


def ends_unit(text: bytes, at: int) -> bool:
    """Test whether a common boundary ends a unit, which it does if a word starts there.

    With this definition, each decision is about whole words, and each replacement is a whole word.
    `benchmarks/units.py` measures the alternative, in which a unit ends at every common boundary.
    """
    return word_starts(text, at)


def word_around(text: bytes, at: int) -> tuple[int, int]:
    """The start and end of the word that contains byte `at`; the end is where the next word starts or the text ends."""
    start, end = at, at + 1
    while start and not _starts(text, start):
        start -= 1
    while end < len(text) and not _starts(text, end):
        end += 1
    return start, min(end, len(text))


def _starts(text: bytes, at: int) -> bool:
    is_inside = text[at : at + 1].strip(_INSIDE) == b"" and at < len(text)
    return not is_inside and word_starts(text, at)


def is_safe_cut(text: bytes, at: int) -> bool:
    """Test for a single space between two visible characters, where every tokenizer that knows words cuts a text."""
    return SAFE_CUT.match(text, at) is not None


def common(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """The length of the common prefix of two texts, in bytes."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most  # the first `low` bytes are equal; the first `high` bytes are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle)
    return low
