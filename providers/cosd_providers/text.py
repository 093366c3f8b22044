"""Bytes that are characters: the few text rules that adapters and the fusion share.

Tokens are bytes, and a token may hold part of a character. Everything above the adapters sees whole characters
only: `merge` joins neighbouring tokens that share one, so that servers which cannot show the parts and servers
which can give the same tokens. Invalid bytes count as whole; U+FFFD is never made.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from cosd_providers.contract import Token


def whole(data: bytes) -> int:
    """Length in bytes of the part of `data` that is whole characters; the rest may yet become one.

    Invalid bytes count as whole: only a proper prefix of a valid UTF-8 character at the very end is left out.
    """
    return codecs.utf_8_decode(data, "surrogateescape", False)[1]


def readable(data: bytes) -> str:
    r"""`data` as text for a person or for JSON, with invalid bytes written as `\xff`."""
    return data.decode("utf-8", "backslashreplace")


def sendable(data: bytes) -> str:
    """`data` as text for a server: bytes that are no characters cannot be sent and are left out."""
    return data.decode("utf-8", "ignore")


def first_character(data: bytes) -> str:
    """The first character of whole-character `data`, or the empty string."""
    return data[:4].decode("utf-8", "surrogateescape")[:1]


def last_character(data: bytes) -> str:
    """The last character of whole-character `data`, or the empty string."""
    return data[-4:].decode("utf-8", "surrogateescape")[-1:]


def continues_word(before: bytes, token: Token) -> bool:
    """Whether `token` goes on with the word that `before` ends in: a letter or digit directly after one."""
    return first_character(token.data).isalnum() and last_character(before).isalnum()


def join(parts: list[Token]) -> Token:
    """Several tokens as one: their bytes together, as sure as the least sure of them."""
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
    )


class Merger:
    """Joins a stream of raw tokens into tokens of whole characters (semantics of bytes: see the module).

    A token without bytes that is not the end belongs to the token that follows. An incomplete character before
    the end of sequence can never be completed: it becomes a token by itself.
    """

    def __init__(self) -> None:
        self.parts: list[Token] = []
        """Raw tokens that wait for the rest of their character."""
        self._data = b""

    def feed(self, token: Token) -> Iterator[Token]:
        """Takes the next raw token; yields the tokens that are whole now: none, one, or two before an end."""
        if token.end and self._data:
            yield self.flush()
        self.parts.append(token)
        self._data += token.data
        if token.end or (self._data and whole(self._data) == len(self._data)):
            yield self.flush()

    def flush(self) -> Token:
        """Gives up waiting: what is there becomes one token as it stands."""
        token = join(self.parts)
        self.parts, self._data = [], b""
        return token


def merge(tokens: Iterable[Token]) -> Iterator[Token]:
    """Joins raw tokens into tokens of whole characters; an incomplete character at the very end is kept back."""
    merger = Merger()
    for token in tokens:
        yield from merger.feed(token)
