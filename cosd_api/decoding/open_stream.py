"""A model's continuation in progress, which is read on as long as the answer follows it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from cosd_api.decoding.paths import Trail
from cosd_providers.contract import DraftEnd, Token


class OpenStream:
    """Writing of one request, as it comes.

    Args:
        start: the text that it continues.
        number: of the request.

    Attributes:
        tokens: what it has written so far.
        end: why it ended; None before.
        error: why it failed.
        scope: cancels the request.
        trail: its raw tokens, where the model is asked after ids.
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
        """True if nothing more will come."""
        return self.end is not None or self.error is not None

    def began(self, trail: Trail) -> None:
        """Take the trail of its raw tokens."""
        self.trail = trail

    def take(self, item: Token | DraftEnd) -> bool:
        """Take the next item of the stream; see `Calls.generate`."""
        if isinstance(item, DraftEnd):
            self.end = item
        else:
            self.tokens.append(item)
        self._wake()
        return False

    def failed(self, error: Exception) -> None:
        """Take the error that ended it."""
        self.error = error
        self._wake()

    async def more(self) -> None:
        """Wait for the next item."""
        await self._changed.wait()

    def own(self, text: bytes) -> Sequence[Token] | None:
        """The first of its tokens, if the text is what it continues and exactly these; else None."""
        length = len(self.start)
        for count, token in enumerate(self.tokens, 1):
            length += len(token.data)
            if length >= len(text):
                tokens = self.tokens[:count]
                return tokens if text == self.start + b"".join(one.data for one in tokens) else None
        return None

    def behind(self, text: bytes) -> bool:
        """Test whether it has written a part of what a text has behind its start, and no more yet."""
        written = self.start + self._data
        return len(written) < len(text) and text.startswith(written)

    def followed(self, text: bytes) -> tuple[int, list[Token]]:
        """The number of its tokens that a text holds, if it is what it continues and these; and the rest of the next.

        The rest is there if the text ends inside a token; it has the probability of all of it.
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
        """Note that its first tokens were read: they are on the model's path."""
        if self.trail is not None and count:
            self.trail.read(len(self.start) + sum(len(token.data) for token in self.tokens[:count]))

    @property
    def _data(self) -> bytes:
        return b"".join(token.data for token in self.tokens)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
