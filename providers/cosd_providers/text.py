"""Bytes and characters: the rules for text that adapters and fusions have in common.

Tokens are bytes, and a token may contain part of a character. Unless a context has ids, callers of an adapter see only
whole characters: `merge` joins neighbouring tokens that share a character. The tokens are therefore the same whether or
not a server can show parts of characters. Invalid bytes count as whole; U+FFFD is never produced.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from cosd_providers.contract import Token

LOST = "\ufffd"
"""U+FFFD, which servers show in place of bytes that are not a character."""


def whole(data: bytes) -> int:
    """Return the length in bytes of the whole characters in `data`.

    Only an incomplete UTF-8 character at the very end is left out; invalid bytes count as whole.
    """
    return len(data) if data.isascii() else codecs.utf_8_decode(data, "surrogateescape", False)[1]


def readable(data: bytes) -> str:
    r"""Convert `data` to text for a person or for JSON, with invalid bytes written as `\xff`."""
    return data.decode("utf-8", "backslashreplace")


def sendable(data: bytes) -> str:
    """Convert `data` to text for a server, without invalid bytes, because these cannot be sent."""
    return data.decode("utf-8", "ignore")


def first_character(data: bytes) -> str:
    """The first character of `data`, which consists of whole characters; the empty string if `data` is empty."""
    return data[:4].decode("utf-8", "surrogateescape")[:1]


def last_character(data: bytes) -> str:
    """The last character of `data`, which consists of whole characters; the empty string if `data` is empty."""
    return data[-4:].decode("utf-8", "surrogateescape")[-1:]


def continues_word(before: bytes, token: Token) -> bool:
    """Test whether `token` continues the last word of `before`: a letter or digit directly follows another."""
    return first_character(token.data).isalnum() and last_character(before).isalnum()


def join(parts: list[Token]) -> Token:
    """Join several tokens into one, with all of their bytes and the lowest of their probabilities."""
    if len(parts) == 1:
        return parts[0]
    probs = [part.prob for part in parts]
    known = [prob for prob in probs if prob is not None]
    last = parts[-1]
    return Token(
        b"".join(part.data for part in parts),
        min(known) if len(known) == len(probs) else None,
        end=last.end,
        name=last.name,
        state=parts[0].state,
    )


class Merger:
    """A buffer that joins a stream of raw tokens into tokens of whole characters.

    A token without bytes is joined to the next token, unless it is the end of sequence. An incomplete character before
    the end of sequence becomes a separate token.
    """

    def __init__(self) -> None:
        self.parts: list[Token] = []  # the raw tokens of a character that is not complete yet
        self._data = b""

    def feed(self, token: Token) -> list[Token]:
        """Add the next raw token and return the tokens that it completes: none, one, or (at an end of sequence) two."""
        data = token.data
        if not self.parts and (token.end or (data and whole(data) == len(data))):
            return [token]  # the usual case
        found: list[Token] = []
        if token.end and self._data:
            found.append(self.flush())
        self.parts.append(token)
        self._data += data
        if token.end or (self._data and whole(self._data) == len(self._data)):
            found.append(self.flush())
        return found

    def flush(self) -> Token:
        """Return `parts` as one token, even if the character is incomplete."""
        token = join(self.parts)
        self.parts, self._data = [], b""
        return token


def merge(tokens: Iterable[Token]) -> Iterator[Token]:
    """Join raw tokens into tokens of whole characters. An incomplete character at the very end is dropped."""
    merger = Merger()
    for token in tokens:
        yield from merger.feed(token)
