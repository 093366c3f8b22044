"""Raw tokens of models that are asked after ids, joined to whole characters so that methods can compare them."""

from __future__ import annotations

from dataclasses import replace

from cosd_providers.contract import Token
from cosd_providers.text import Merger, whole


class Characters:
    """Joins raw tokens to tokens of whole characters, and keeps the alternatives that are whole characters."""

    def __init__(self) -> None:
        self._merger = Merger()

    @property
    def open(self) -> bool:
        """Test whether a character is incomplete so far."""
        return bool(self._merger.parts)

    def feed(self, token: Token) -> list[Token]:
        """Add the next raw token, and return the tokens that it completes: none, one, or two at an end of sequence."""
        return [with_whole(one) for one in self._merger.feed(token)]

    def flush(self) -> list[Token]:
        """Return the incomplete character, if any, as a token."""
        return [self._merger.flush()] if self._merger.parts else []


def with_whole(token: Token) -> Token:
    """The token, with only those alternatives that are a different text in whole characters or the end of sequence."""
    if not token.alternatives:
        return token
    found = {(token.data, token.end): token}
    for one in token.alternatives:
        if one.end or (one.data and whole(one.data) == len(one.data)):
            found.setdefault((one.data, one.end), one)
    return replace(token, alternatives=tuple(found.values())[1:])
