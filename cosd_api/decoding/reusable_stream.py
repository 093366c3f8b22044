"""A stream that stays open and is read further as long as the answer continues with the stream's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from cosd_api.paths.own_ids import Trail
from cosd_providers.contract import DraftEnd, Token


class ReusableStream:
    """The stream of one request, with its tokens so far.

    Args:
        start: the text that the stream continues.
        number: number of the request.

    Attributes:
        tokens: the tokens so far.
        end: the end of the stream; None until the stream has ended.
        error: the error that ended the stream, if any.
        scope: the scope through which the request is cancelled.
        trail: the raw tokens, if the model is sent ids.
    """

    def __init__(self, start: bytes, number: int) -> None:
        self.start = start
        self.number = number
        self.tokens: list[Token] = []
        self.end: DraftEnd | None = None
        self.error: Exception | None = None
        self.scope = anyio.CancelScope()
        self.trail: Trail | None = None
        self._changed = anyio.Event()

    @property
    def over(self) -> bool:
        """Test whether the stream has ended or failed."""
        return self.end is not None or self.error is not None

    def began(self, trail: Trail) -> None:
        """Store the trail of the raw tokens."""
        self.trail = trail

    def take(self, item: Token | DraftEnd) -> bool:
        """Store the next item of the stream; see `Calls.generate`."""
        if isinstance(item, DraftEnd):
            self.end = item
        else:
            self.tokens.append(item)
        self._wake()
        return False

    def failed(self, error: Exception) -> None:
        """Store the error that ended the stream."""
        self.error = error
        self._wake()

    async def more(self) -> None:
        """Wait for the next item."""
        await self._changed.wait()

    def own(self, text: bytes) -> Sequence[Token] | None:
        """The stream's first tokens that, appended to `start`, spell exactly `text`; None if that is impossible."""
        length = len(self.start)
        for count, token in enumerate(self.tokens, 1):
            length += len(token.data)
            if length >= len(text):
                tokens = self.tokens[:count]
                return tokens if text == self.start + b"".join(one.data for one in tokens) else None
        return None

    def is_beginning_of(self, text: bytes) -> bool:
        """Test whether the stream agrees with `text` so far, but has not yet written all of it."""
        written = self.start + self._data
        return len(written) < len(text) and text.startswith(written)

    def followed(self, text: bytes) -> tuple[int, list[Token]]:
        """The number of the stream's whole tokens in `text`, and the rest of the token inside which `text` ends.

        The rest, if any, has the probability of the whole token. If the stream does not begin with `text`, the number
        is 0 and the rest is empty.
        """
        if not (self.start + self._data).startswith(text):
            return 0, []
        length = len(self.start)
        for count, token in enumerate(self.tokens):
            if length == len(text):
                return count, []
            if length + len(token.data) > len(text):
                return count, [Token(token.data[len(text) - length :], token.prob)]
            length += len(token.data)
        return len(self.tokens), []

    def read(self, count: int) -> None:
        """Mark the first `count` tokens as read, which puts them on the model's path."""
        if self.trail is not None and count:
            self.trail.read(len(self.start) + sum(len(token.data) for token in self.tokens[:count]))

    @property
    def _data(self) -> bytes:
        return b"".join(token.data for token in self.tokens)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
