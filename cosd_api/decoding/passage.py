"""Passages that a model wrote in one request, and the parts of them that became part of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cosd_providers.contract import DraftEnd, Token


@dataclass(frozen=True, slots=True)
class Passage:
    """A model's own continuation of a text.

    Attributes:
        tokens: tokens of the continuation; an end of sequence comes last.
        number: number of its request, in the series of drafts.
        end: the end of the request; None if it was stopped because no more tokens were wanted.
    """

    tokens: tuple[Token, ...]
    number: int
    end: DraftEnd | None

    @property
    def data(self) -> bytes:
        """The bytes of the passage."""
        return b"".join(token.data for token in self.tokens)

    def first(self, length: int) -> list[Token]:
        """The tokens of the first `length` bytes; if a token is cut, the probability of its part is unknown."""
        kept: list[Token] = []
        for token in self.tokens:
            if length <= 0:
                break
            kept.append(token if len(token.data) <= length else Token(token.data[:length], None))
            length -= len(token.data)
        return kept


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Tokens that became part of an answer, with their model, its request, and the reason.

    `compared` tells whether they were compared with other texts.
    """

    tokens: Sequence[Token]
    model: int
    number: int
    reason: str | None
    compared: bool


def numbered(tokens: Sequence[Token], start: int) -> list[tuple[int, Token]]:
    """The tokens, each with its byte offset; the first token begins at byte `start`."""
    starts = accumulate((len(token.data) for token in tokens), initial=start)
    return list(zip(starts, tokens, strict=False))
