"""Passages that a model wrote by itself in one request, and their parts that were written into an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cosd_providers.contract import DraftEnd, Token


@dataclass(frozen=True, slots=True)
class Passage:
    """A model's own greedy continuation of a text.

    Attributes:
        tokens: its tokens; the end of sequence, if any, comes last.
        number: of its request, as drafts are counted.
        end: its end; None if no more tokens were wanted.
    """

    tokens: tuple[Token, ...]
    number: int
    end: DraftEnd | None

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return b"".join(token.data for token in self.tokens)

    def first(self, length: int) -> list[Token]:
        """The tokens of its first `length` bytes; the probability of a part of a token is not known."""
        kept: list[Token] = []
        for token in self.tokens:
            if length <= 0:
                break
            kept.append(token if len(token.data) <= length else Token(token.data[:length], None))
            length -= len(token.data)
        return kept


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Tokens that were written: with their model, its request, the reason, and whether other texts were compared."""

    tokens: Sequence[Token]
    model: int
    number: int
    reason: str | None
    compared: bool


def numbered(tokens: Sequence[Token], start: int) -> list[tuple[int, Token]]:
    """Tokens with the byte offset of each; the first is at `start`."""
    starts = accumulate((len(token.data) for token in tokens), initial=start)
    return list(zip(starts, tokens, strict=False))
