"""Raw tokens of a model that is asked after ids, joined to whole characters so that methods can compare them. Pure."""

from __future__ import annotations

from dataclasses import replace

from cosd_providers.contract import Token
from cosd_providers.text import Merger, whole


class Characters:
    """Joiner of raw tokens into tokens of whole characters, with the alternatives that are whole characters, too."""

    def __init__(self) -> None:
        self._merger = Merger()

    @property
    def open(self) -> bool:
        """True inside a character."""
        return bool(self._merger.parts)

    def feed(self, token: Token) -> list[Token]:
        """Take the next raw token; return the tokens that are whole now: none, one, or two at an end."""
        return [with_whole(one) for one in self._merger.feed(token)]

    def flush(self) -> list[Token]:
        """The character that stays incomplete, as a token."""
        return [self._merger.flush()] if self._merger.parts else []


def with_whole(token: Token) -> Token:
    """A token with only its alternatives that are another text in whole characters, or the end of sequence."""
    if not token.alternatives:
        return token
    found = {(token.data, token.end): token}
    for one in token.alternatives:
        if one.end or (one.data and whole(one.data) == len(one.data)):
            found.setdefault((one.data, one.end), one)
    return replace(token, alternatives=tuple(found.values())[1:])
