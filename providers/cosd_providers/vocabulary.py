"""Conversion of vocabulary entries from strings to bytes.

Servers and libraries show the entries of a vocabulary as strings, and each kind of tokenizer has its own notation for
bytes. A string alone is ambiguous: `"Ã¼"` may be two characters, or the two bytes of one character. The text that the
strings spell resolves the ambiguity; every reading must be confirmed by the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

from cosd_providers.contract import Piece
from cosd_providers.text import LOST

Kind = Literal["bytes", "spaces"]
"""The notation of a vocabulary: `"bytes"` as in byte-level BPE (`"Ġthe"`, `"Ã¼"`), or `"spaces"` as in SentencePiece
(`"▁the"`, `"<0xC3>"`). Plain ASCII without spaces looks the same in both."""

ENDS = (
    *("</s>", "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>"),
    *("<eos>", "<end_of_turn>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_utterance>"),
    *("<EOT>", "_<EOT>", "<|user|>", "<|observation|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *("<|END_OF_TURN_TOKEN|>", "<EOS_TOKEN>", "[EOS]", "[|endofturn|]"),
)
"""Names that end a sequence or a turn in common vocabularies. The server shows which of them its model uses as ends."""

SURE_ENDS = frozenset(
    ("</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>")
)
"""Names in `ENDS` that are ends for every model, so that no request has to confirm this."""

_KINDS: tuple[Kind, Kind] = ("bytes", "spaces")


def _alphabet() -> dict[str, int]:
    """GPT-2's mapping of characters to bytes (`bytes_to_unicode` in its `encoder.py`), which all byte-level BPE uses.

    Bytes that are printable in Latin-1 represent themselves. The other bytes are represented, in order, by U+0100 and
    above.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _alphabet()
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"  # SentencePiece's sign for a space; a text may also contain it as a character
_LEADS: dict[Kind, str] = {"bytes": "Ġ", "spaces": _SPACE}
_ANGLED = re.compile(r"\s*<.+>\s*", re.DOTALL)
_SPECIAL = re.compile(r"\s*(<.+>|\[.+\])\s*", re.DOTALL)
_WHITE = re.compile(rb"\s*")
_CROSSING = re.compile(r"[^\s\0-\x1f$+<=>^|~\x7f-\xbf×÷\u2190-\u2bff\ud800-\udfff] (?![\s\0-\x1f])")

_Step = tuple["_Step | None", bytes]  # the previous step, and the bytes of the token read in this step


def looks_special(string: str) -> bool:
    """True if a string looks like a token without text, such as `"</s>"`. White space around the string is ignored."""
    return _SPECIAL.fullmatch(string) is not None


def crosses_space(data: bytes) -> bool:
    """Test whether a token crosses a single space after a visible character, so that none begins there.

    Such a token may end with the space, like `b", "`. A space after a symbol does not count, because vocabularies of
    single words can have tokens such as `b"> </"` (Gemma 3) or `b" = "` (DeepSeek). Symbols are `$ + < = > ^ | ~`, the
    signs of Latin-1, arrows and mathematical signs.
    """
    return _CROSSING.search(data.decode("utf-8", "surrogateescape")) is not None


def keeps_spaces(strings: Iterable[str]) -> bool:
    """True if tokens keep the space before a word when each is decoded separately.

    Tokens of a SentencePiece vocabulary lose this space. So if no string begins with a space, no string can be trusted.
    Strings with U+FFFD are parts of characters, and prove nothing about other strings.
    """
    return any(string.startswith(" ") and not string.isspace() and LOST not in string for string in strings)


def is_plain(string: str) -> bool:
    """True if a token's string is its text: whole characters, and not in angle brackets like a special token.

    Square brackets are allowed, because most strings in square brackets are text, such as `"[0]"`.
    """
    return bool(string) and LOST not in string and _ANGLED.fullmatch(string) is None


def decode_token(kind: Kind, string: str) -> bytes:
    """Convert a vocabulary entry to bytes.

    In both notations, special and added tokens are plain text. If the string of such a token is also valid in the
    notation, it is read as an entry of the vocabulary.
    """
    if kind == "bytes":
        try:
            return bytes(map(_ALPHABET.__getitem__, string))
        except KeyError:
            return string.encode()
    byte = _BYTE.fullmatch(string)
    return bytes.fromhex(byte[1]) if byte else string.replace(_SPACE, " ").encode()


def kind_of(text: bytes, strings: Sequence[str]) -> Kind | None:
    """Find the notation in which `strings` spell `text`; None if both notations fit, or neither.

    The best choice for `text` has a space and no special tokens.
    """
    spelled = [any(_reads(lead + text, strings, kind, strict=True) for lead in (b"", b" ")) for kind in _KINDS]
    return _KINDS[spelled.index(True)] if sum(spelled) == 1 else None


def spell(text: bytes, tokens: Sequence[tuple[int, str]]) -> list[Piece] | None:
    """Convert the tokens of an encoded text to exact bytes, which join to `text`.

    Each string is read in a way that the text confirms: either as a vocabulary entry, in the same notation for all
    entries, or literally, like the strings of added and special tokens. A tokenizer may put a space before the text, or
    after a special token. Such a space is not part of the text, so a token that consists only of this space has no
    bytes. A special token may include the white space after it.

    The result is None if the strings, without special tokens that the tokenizer added, do not spell the text, for
    example because a normaliser has changed it, or because an unknown character became `"<unk>"`.
    """
    strings = [string for _, string in tokens]
    for kind in _KINDS:
        found = _reads(text, strings, kind)
        if found is not None:
            return [Piece(id, data) for (id, _), data in zip(tokens, found, strict=True)]
    return None


def _reads(text: bytes, strings: Sequence[str], kind: Kind, *, strict: bool = False) -> list[bytes] | None:
    """Find bytes for each string that join to `text`; None if there are none. `strict` allows only vocabulary entries.

    The search follows all paths through the text in parallel: `ways` contains the most likely path to each position.
    """
    ways: dict[int, _Step | None] = {0: None}
    marker = True  # whether the tokenizer may have added a space before the next string
    for string in strings:
        reached: dict[int, _Step | None] = {}
        for at, before in ways.items():
            for data in islice(_readings(string, kind, text, at, spaced=marker), 1 if strict else None):
                if text.startswith(data, at):
                    reached.setdefault(at + len(data), (before, data))
        ways, marker = reached, looks_special(string)
    if len(text) not in ways:
        return None
    step, found = ways[len(text)], list[bytes]()
    while step:
        step, data = step
        found.append(data)
    return found[::-1]


def _readings(string: str, kind: Kind, text: bytes, at: int, *, spaced: bool) -> Iterator[bytes]:
    """Yield the possible bytes of a string at a position in the text, the most likely first."""
    yield _entry(string, kind, text, at)
    plain = string.encode()
    yield plain
    if spaced and string.startswith(_LEADS[kind]):
        yield _entry(string[1:], kind, text, at)
    if looks_special(string):  # some special tokens include the white space after them
        white = _WHITE.match(text, at + len(plain))
        yield plain + (white[0] if white else b"")


def _entry(string: str, kind: Kind, text: bytes, at: int) -> bytes:
    """Convert an entry like `decode_token`, but allow for a text that contains SentencePiece's sign for a space."""
    if kind == "bytes" or _SPACE not in string:
        return decode_token(kind, string)
    first, *others = string.split(_SPACE)
    data = first.encode()
    for other in others:
        kept = text.startswith(_SPACE.encode(), at + len(data))
        data += (_SPACE if kept else " ").encode() + other.encode()
    return data
