"""Passages that a model wrote in one request, and the parts of passages that became part of an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from cosd_providers.contract import DraftEnd, Token

if TYPE_CHECKING:
    from cosd_api.decoding.model import Model


@dataclass(frozen=True, slots=True)
class Passage:
    """A model's own continuation of a text.

    Attributes:
        model: the model that wrote it.
        tokens: tokens of the continuation. An end of sequence can only be the last token.
        number: number of the passage's request, in the series of drafts.
        end: the end of the request; None if the request was stopped because no more tokens were needed.
        before: the text that the passage continues.
    """

    model: Model
    tokens: tuple[Token, ...]
    number: int
    end: DraftEnd | None
    before: bytes = b""

    @property
    def data(self) -> bytes:
        """The bytes of the passage."""
        return joined(self.tokens)

    @property
    def ends(self) -> bool:
        """True if the model ended the answer with its end of sequence."""
        return bool(self.tokens) and self.tokens[-1].end

    @property
    def stuck(self) -> bool:
        """True if the model cannot continue, because its context is full or a filter intervened."""
        return is_stuck(self.end)

    def first(self, length: int) -> Passage:
        """The first `length` bytes. If the last token is cut, its probability is unknown."""
        kept: list[Token] = []
        for token in self.tokens:
            if length <= 0:
                break
            kept.append(token if len(token.data) <= length else Token(token.data[:length], None))
            length -= len(token.data)
        return replace(self, tokens=tuple(kept), end=None)


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Tokens that became part of an answer, with the index of their model, their request, and the reason.

    `compared` is True if the tokens were compared with other proposed texts.
    """

    tokens: Sequence[Token]
    model: int
    number: int
    reason: str | None
    compared: bool


def is_stuck(end: DraftEnd | None) -> bool:
    """Test whether a request ended because its model cannot continue."""
    return end is not None and end.reason in ("context", "filter")


def joined(tokens: Iterable[Token]) -> bytes:
    """The bytes of all tokens."""
    return b"".join(token.data for token in tokens)


def numbered(tokens: Sequence[Token], start: int) -> list[tuple[int, Token]]:
    """The tokens, each with its byte offset. The first token begins at byte `start`."""
    starts = accumulate((len(token.data) for token in tokens), initial=start)
    return list(zip(starts, tokens, strict=False))
