"""The response so far: a text of tokens that grows, is cut back, and ends where it must."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_api.decoding.commands import Finish, Placed
from cosd_api.decoding.stops import StopFinder
from cosd_providers.contract import Token


class Response:
    """Tokens, from left to right: emitted | settled, held back for a stop | pending.

    Args:
        max_tokens: its length at most, its end of sequence included.
        stop: strings (as UTF-8) before which it ends.

    Attributes:
        tokens: all of them.
        text: their bytes.
        settled: the number of final tokens.
        over: the present end of the text; None while it may continue. A replacement may change it.
    """

    def __init__(self, max_tokens: int, stop: Sequence[bytes]) -> None:
        self.max_tokens = max_tokens
        self.stops = StopFinder(stop)
        self.tokens: list[Placed] = []
        self.text = bytearray()
        self.settled = 0
        self.over: Finish | None = None
        self._ends: list[int] = []  # byte offset of each token's end
        self._ids: list[int] = []  # of all tokens, or of none
        self._emitted = 0
        self._stop_starts: int | None = None  # byte offset of the stop string that ends the text

    @property
    def stopped(self) -> bool:
        """True if a stop string ends the present text."""
        return self._stop_starts is not None

    def place(self, placed: Placed) -> None:
        """Put a token at the end, which may end the text."""
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
        """Throw away all but the first `count` tokens."""
        del self.tokens[count:], self._ends[count:], self._ids[count:]
        del self.text[self.end_of(count) :]
        self.over = self._stop_starts = None

    def end_of(self, count: int) -> int:
        """Byte offset where the first `count` tokens end."""
        return self._ends[count - 1] if count else 0

    def ids_before(self, count: int) -> tuple[int, ...]:
        """The ids of the first `count` tokens, if the models show ids: the path of all models with these ids."""
        return tuple(self._ids[:count])

    def settle(self, count: int) -> tuple[Placed, ...]:
        """Make the first `count` tokens final, and return the tokens that may go out now.

        Text that could still become a stop string is held back.
        """
        self.settled = count
        settled = self.end_of(count)
        free = settled - self.stops.held_back(self.text, settled)
        end = count
        while end > self._emitted and self._ends[end - 1] > free:
            end -= 1
        return self._emit(end)

    def finish(self) -> tuple[Placed, ...]:
        """Complete the answer: cut it before its stop string, and return the remaining tokens to go out."""
        if self._stop_starts is not None:
            self._trim(self._stop_starts)
        self.settled = len(self.tokens)
        return self._emit(self.settled)

    def keep_emitted(self, over: Finish) -> None:
        """Throw away all but the emitted tokens, and end there."""
        self.cut_back(self._emitted)
        self.over = over

    def _emit(self, end: int) -> tuple[Placed, ...]:
        tokens = tuple(self.tokens[self._emitted : end])
        self._emitted = max(self._emitted, end)
        return tokens

    def _trim(self, cut: int) -> None:
        """End the text at byte `cut`; a token that straddles it keeps the bytes before."""
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
