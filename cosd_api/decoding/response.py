"""The response, which grows by tokens, is cut back by replacements, and ends at a limit or a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_api.decoding.commands import Finish, Placed
from cosd_api.decoding.stops import StopFinder
from cosd_providers.contract import Token


class Response:
    """The tokens of an answer: first the emitted tokens, then final tokens that are held back, then pending tokens.

    Args:
        max_tokens: maximum number of tokens, including the end of sequence.
        stop: stop strings (as UTF-8); the answer ends before the first of these strings.

    Attributes:
        tokens: all tokens.
        text: the bytes of all tokens, joined.
        settled: number of final tokens.
        over: the reason why the text cannot continue; None while it can continue. A replacement may change the reason.
    """

    def __init__(self, max_tokens: int, stop: Sequence[bytes]) -> None:
        self.max_tokens = max_tokens
        self.stops = StopFinder(stop)
        self.tokens: list[Placed] = []
        self.text = bytearray()
        self.settled = 0
        self.over: Finish | None = None
        self._ends: list[int] = []  # byte offset of the end of each token
        self._ids: list[int] = []  # ids of all tokens; empty if the models show no ids
        self._emitted = 0
        self._stop_starts: int | None = None  # byte offset at which the stop string begins

    @property
    def stopped(self) -> bool:
        """Test whether the text, as it is now, ends at a stop string."""
        return self._stop_starts is not None

    def place(self, placed: Placed) -> None:
        """Append a token, which may end the text."""
        token = placed.token
        self.tokens.append(placed)
        self.text += token.data
        self._ends.append(len(self.text))
        if token.id is not None:
            self._ids.append(token.id)
        if self.stops.longest and (stop := self.stops.find(self.text, len(token.data))) is not None:
            self._stop_starts = len(self.text) - stop.distance
            self.over = Finish("stop", stop.text)
        elif token.end:
            self.over = Finish("stop", token.name or "end of sequence")
        elif len(self.tokens) >= self.max_tokens:
            self.over = Finish("length", "max_tokens")

    def cut_back(self, count: int) -> None:
        """Remove all tokens except the first `count`."""
        del self.tokens[count:], self._ends[count:], self._ids[count:]
        del self.text[self.end_of(count) :]
        self.over = self._stop_starts = None

    def end_of(self, count: int) -> int:
        """The byte offset at which the first `count` tokens end."""
        return self._ends[count - 1] if count else 0

    def settle(self, count: int) -> tuple[Placed, ...]:
        """Make the first `count` tokens final, and return the tokens that can be emitted now.

        Text that may be the beginning of a stop string is held back.
        """
        self.settled = count
        settled = self.end_of(count)
        free = settled - self.stops.held_back(self.text, settled)
        end = count
        while end > self._emitted and self._ends[end - 1] > free:
            end -= 1
        return self._emit(end)

    def finish(self) -> tuple[Placed, ...]:
        """Complete the answer. Cut it before its stop string, if any, and return the tokens not emitted yet."""
        if self._stop_starts is not None:
            self._trim(self._stop_starts)
        self.settled = len(self.tokens)
        return self._emit(self.settled)

    def keep_emitted(self, over: Finish) -> None:
        """Remove all tokens that were not emitted, and end the answer after the emitted tokens."""
        self.cut_back(self._emitted)
        self.over = over

    def _emit(self, end: int) -> tuple[Placed, ...]:
        tokens = tuple(self.tokens[self._emitted : end])
        self._emitted = max(self._emitted, end)
        return tokens

    def _trim(self, cut: int) -> None:
        """End the text at byte `cut`. A token that extends across the cut keeps its bytes before the cut."""
        while self._ends and self._ends[-1] > cut:
            start = self.end_of(len(self.tokens) - 1)
            if start < cut:
                token = self.tokens[-1].token
                self.tokens[-1].token = Token(token.data[: cut - start], token.prob, id=token.id)
                self._ends[-1] = cut
            else:
                self.tokens.pop()
                self._ends.pop()
        del self.text[cut:]
