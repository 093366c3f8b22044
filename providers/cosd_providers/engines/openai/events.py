"""Answers without log probabilities, event by event: what a server sends at a time counts as one token."""

from __future__ import annotations

from collections.abc import Iterator

from cosd_providers.contract import Token
from cosd_providers.engine import own_stop
from cosd_providers.engines.openai.wire import Completion
from cosd_providers.errors import ResponseError
from cosd_providers.greedy import Choice, Position

__all__ = ["FINISHES", "EventReader"]

FINISHES = ("stop", "length", "content_filter")
"""Reasons for the end of an answer."""


class EventReader:
    """Reader of the events of one answer; the tokens have no probabilities.

    Args:
        endpoint: the server's URL, for errors.
        repeated: text at the front that the server repeats, and the model did not write.

    Attributes:
        count: tokens so far.
        spaced: False; strings of listed tokens are not seen.
    """

    spaced = False

    def __init__(self, endpoint: str, repeated: str = "") -> None:
        self.count = 0
        self._endpoint = endpoint
        self._repeated = repeated
        self._held = ""

    def feed(self, answer: Completion) -> Iterator[Position]:
        """Take an event; yield its text, and the end of sequence.

        Raises:
            UnsupportedError: the server ended the answer at a stop string of its own.
            ResponseError: the answer ended for an unknown reason.
        """
        if text := self._new(answer.written, last=answer.finish_reason is not None):
            yield self._position(Token(text.encode(), None))
        if isinstance(answer.stop_reason, str) and answer.stop_reason:
            raise own_stop(self._endpoint, hint="Start it without stop strings, in its generation settings too.")
        if answer.finish_reason is not None and answer.finish_reason not in FINISHES:
            words = f"the answer ended for an unknown reason: {answer.finish_reason[:40]!r}"
            raise ResponseError(words, endpoint=self._endpoint)
        if answer.finish_reason == "stop":
            yield self._position(Token(b"", None, end=True))

    def _new(self, text: str, *, last: bool) -> str:
        """Text without what is repeated: held until it is seen whether all of it is, and given back if it is not."""
        if not self._repeated:
            return text
        self._held += text
        if self._repeated.startswith(self._held) and self._held != self._repeated and not last:
            return ""
        new = self._held.removeprefix(self._repeated)
        self._repeated = self._held = ""
        return new

    def _position(self, token: Token) -> Position:
        self.count += 1
        return Position(Choice(self.count, token))
