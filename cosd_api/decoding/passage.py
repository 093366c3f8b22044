"""Passages that a model wrote in one request, and the parts of passages that became part of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cosd_providers.contract import DraftEnd, Token


@dataclass(frozen=True, slots=True)
class Passage:
    """A model's own continuation of a text.

    Attributes:
        tokens: tokens of the continuation. An end of sequence can only be the last token.
        number: number of the passage's request, in the series of drafts.
        end: the end of the request; None if the request was stopped because no more tokens were needed.
    """

    tokens: tuple[Token, ...]
    number: int
    end: DraftEnd | None

    @property
    def data(self) -> bytes:
        """The bytes of the passage."""
        return b"".join(token.data for token in self.tokens)

    def first(self, length: int) -> list[Token]:
        """The tokens of the first `length` bytes. If the last token is cut, its probability is unknown."""
        kept: list[Token] = []
        for token in self.tokens:
            if length <= 0:
                break
            kept.append(token if len(token.data) <= length else Token(token.data[:length], None))
            length -= len(token.data)
        return kept


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Tokens that became part of an answer, with their model, their request, and the reason.

    `compared` is True if the tokens were compared with other proposed texts.
    """

    tokens: Sequence[Token]
    model: int
    number: int
    reason: str | None
    compared: bool


def numbered(tokens: Sequence[Token], start: int) -> list[tuple[int, Token]]:
    """The tokens, each with its byte offset. The first token begins at byte `start`."""
    starts = accumulate((len(token.data) for token in tokens), initial=start)
    return list(zip(starts, tokens, strict=False))
