"""What else a model might have said in the place of a drafted token: pure, without I/O, the same for every adapter."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from cosd_providers.contract import Token
from cosd_providers.scoring import Choice, Position
from cosd_providers.text import sendable, whole

__all__ = ["is_plain", "keeps_spaces", "with_alternatives"]

_SPECIAL = re.compile(r"\s*<.*>\s*", re.DOTALL)


def with_alternatives(position: Position, count: int) -> Token:
    """The token that the server took, with up to `count` of those listed at its place, the most probable first.

    Left out is whatever is not known for sure to be something else to say: a token whose bytes are not known, are none
    or are not whole characters; one that says the same as another; one of probability 0. Where the token's own
    probability is unknown, nobody contests it, and it gets none, nor does a part of a character. The end of sequence
    counts, where it is listed.

    Give it to `scoring.Draft`: what is merged with other raw tokens there loses them.
    """
    own = position.pick.token
    if count <= 0 or own.prob is None or position.pick.open or whole(own.data) < len(own.data):
        return own
    found: dict[tuple[bytes, bool], Token] = {}
    for choice in sorted(position.top, key=lambda choice: -(choice.token.prob or 0)):
        token = choice.token
        if _says_something(choice) and (token.data, token.end) != (own.data, own.end):
            found.setdefault((token.data, token.end), token)
    return replace(own, alternatives=tuple(found.values())[:count])


def keeps_spaces(strings: Iterable[str]) -> bool:
    """Whether some of these strings, of tokens each decoded alone, show that such strings have the space before a word.

    Those of SentencePiece have lost it. Where none begins with a space it is not known, and no string can be trusted.
    What is written as bytes, since it is a part of a character, tells nothing of the others.
    """
    return any(string.startswith(" ") and not string.isspace() and "\ufffd" not in string for string in strings)


def is_plain(string: str) -> bool:
    """Whether a token's string is what it says: not where it leaves a character open, or looks like a special one."""
    return bool(string) and "\ufffd" not in string and _SPECIAL.fullmatch(string) is None


def _says_something(choice: Choice) -> bool:
    token = choice.token
    if not token.prob or choice.open or not choice.sure:
        return False
    return token.end or (bool(token.data) and sendable(token.data).encode() == token.data)
