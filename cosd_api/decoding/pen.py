"""A model's continuation in progress, which is read on as long as the answer follows it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from cosd_api.decoding.paths import Trail
from cosd_providers.contract import DraftEnd, Token


class Pen:
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

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
