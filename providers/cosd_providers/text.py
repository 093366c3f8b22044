"""Bytes and characters: the text rules shared by adapters and the fusion.

Tokens are bytes, and a token may hold part of a character. Above the adapters there are whole characters only: `merge`
joins neighbouring tokens that share a character, so servers give the same tokens whether or not they can show the
parts. Invalid bytes count as whole; U+FFFD is never produced.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from cosd_providers.contract import Token

LOST = "\ufffd"
"""U+FFFD: the servers' placeholder of bytes that are no character."""


def whole(data: bytes) -> int:
    """Length in bytes of the whole characters in `data`.

    Invalid bytes count as whole: only a proper prefix of a valid UTF-8 character at the very end is left out.
    """
    return len(data) if data.isascii() else codecs.utf_8_decode(data, "surrogateescape", False)[1]


def readable(data: bytes) -> str:
    r"""`data` as text for a person or for JSON, with invalid bytes written as `\xff`."""
    return data.decode("utf-8", "backslashreplace")


def sendable(data: bytes) -> str:
    """`data` as text for a server, without invalid bytes, which cannot be sent."""
    return data.decode("utf-8", "ignore")


def first_character(data: bytes) -> str:
    """The first character of whole-character `data`, or the empty string."""
    return data[:4].decode("utf-8", "surrogateescape")[:1]


def last_character(data: bytes) -> str:
    """The last character of whole-character `data`, or the empty string."""
    return data[-4:].decode("utf-8", "surrogateescape")[-1:]


def continues_word(before: bytes, token: Token) -> bool:
    """Test whether `token` continues the last word of `before`: a letter or digit directly after another."""
    return first_character(token.data).isalnum() and last_character(before).isalnum()


def join(parts: list[Token]) -> Token:
    """Several tokens as one: their bytes joined, the lowest of their probabilities."""
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
    """Joiner of a stream of raw tokens into tokens of whole characters.

    A token without bytes that is not the end belongs to the next token. An incomplete character before the end of
    sequence becomes a token by itself.

    Attributes:
        parts: raw tokens that wait for the rest of their character.
    """

    def __init__(self) -> None:
        self.parts: list[Token] = []
        self._data = b""

    def feed(self, token: Token) -> list[Token]:
        """Take the next raw token; return the tokens that are whole now: none, one, or two at an end."""
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
        """The waiting parts as one token, though incomplete."""
        token = join(self.parts)
        self.parts, self._data = [], b""
        return token


def merge(tokens: Iterable[Token]) -> Iterator[Token]:
    """Join raw tokens into tokens of whole characters; an incomplete character at the very end is dropped."""
    merger = Merger()
    for token in tokens:
        yield from merger.feed(token)
