"""The ends of the words in a text, as defined by a model's tokenizer or by Unicode. All functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from cosd_providers.contract import WordEnds

_LINE_ENDS = "\n\r\x85\u2028\u2029"


def unicode_words(text: str) -> list[int]:
    r"""Return the character offsets at which the words of `text` end, by Unicode's default word boundaries (UAX 29).

    White space belongs to the word after it, as in nearly every tokenizer. A line end ends a word, unless more white
    space follows. For example, `" not the"` is split into `" not"` and `" the"`, and `"on.\n\nThe"` into `"on"`, `"."`,
    `"\n\n"` and `"The"`. Every punctuation mark is a separate word, and so is every Han or Hiragana character.
    """
    ends: list[int] = []
    for match in _boundary().finditer(text):
        at: int = match.start()
        if 0 < at < len(text) and not _within_space(text[at - 1], text[at]):
            ends.append(at)
    return [*ends, len(text)] if text else []


def _within_space(before: str, following: str) -> bool:
    """Test whether `before` is white space that belongs to the word after it, so that no word ends in between."""
    return before.isspace() and (before not in _LINE_ENDS or following.isspace())


@cache
def _boundary() -> Any:
    """Return the pattern of a word boundary. The package `regex` is imported only when it is first needed."""
    import regex  # noqa: PLC0415

    return regex.compile(r"\b", regex.WORD)


def complete_words(data: bytes, splitters: Sequence[WordEnds]) -> int:
    """Return the length in bytes of the longest prefix at whose end every splitter ends a word; see `common_ends`."""
    return max(common_ends(data, splitters), default=0)


def common_ends(data: bytes, splitters: Sequence[WordEnds]) -> list[int]:
    """Return the byte offsets at which every splitter ends a word, in ascending order, except for the end of the text.

    The end of the text is left out because the last word may still grow.
    """
    first, *others = ({*ends_of_words(data, split)[:-1]} for split in splitters)
    return sorted(first.intersection(*others))


def ends_of_words(data: bytes, split: WordEnds) -> list[int]:
    """Return the byte offsets at which the words of a text end, in ascending order, including the end of the text.

    A text that contains invalid UTF-8 is always split at Unicode's word boundaries, never by a tokenizer.
    """
    text = data.decode("utf-8", "surrogateescape")
    readable = data == text.encode("utf-8", "ignore")
    ends = (split if readable else unicode_words)(text)
    inner = {len(text[:end].encode("utf-8", "surrogateescape")) for end in ends if 0 < end < len(text)}
    return [*sorted(inner), len(data)] if data else []
