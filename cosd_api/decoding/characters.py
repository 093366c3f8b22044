"""Joining of raw tokens into whole characters, so that methods can compare the tokens of models that are sent ids."""

from __future__ import annotations

from dataclasses import replace

from cosd_providers.contract import Token
from cosd_providers.text import Merger, whole


class Characters:
    """Joins raw tokens into tokens of whole characters, and keeps only alternatives that are whole characters."""

    def __init__(self) -> None:
        self._merger = Merger()

    @property
    def open(self) -> bool:
        """Test whether the last character is still incomplete."""
        return bool(self._merger.parts)

    def feed(self, token: Token) -> list[Token]:
        """Add the next raw token, and return the tokens that it completes: none, one or, at an end of sequence, two."""
        return [with_whole(one) for one in self._merger.feed(token)]

    def flush(self) -> list[Token]:
        """Return the incomplete character, if any, as a token."""
        return [self._merger.flush()] if self._merger.parts else []


def with_whole(token: Token) -> Token:
    """The token, keeping each alternative only if it is the end of sequence or a different text of whole characters."""
    if not token.alternatives:
        return token
    found = {(token.data, token.end): token}
    for one in token.alternatives:
        if one.end or (one.data and whole(one.data) == len(one.data)):
            found.setdefault((one.data, one.end), one)
    return replace(token, alternatives=tuple(found.values())[1:])
