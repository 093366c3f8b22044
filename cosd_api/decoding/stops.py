"""Stop strings in a growing text. The string that ends first wins; if several end together, the longest wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cosd_providers.text import readable


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop string that was found, and the number of bytes from its start to the end of the text."""

    distance: int
    text: str


class StopFinder:
    """Searches the newest part of a text for stop strings (as UTF-8)."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        # The longest string comes first, so that it wins if several strings end at the same byte.
        self.stops = sorted(set(stops), key=len, reverse=True)
        self.longest = max(map(len, self.stops), default=0)

    def find(self, text: bytearray, grown: int) -> Stop | None:
        """The stop string that ends first within the last `grown` bytes of `text`."""
        if not self.stops or not grown:
            return None
        base = max(0, len(text) - grown - self.longest + 1)
        window = text[base:]
        best: tuple[int, bytes] | None = None
        for stop in self.stops:
            at = window.find(stop, max(0, len(window) - grown - len(stop) + 1))
            if at >= 0 and (best is None or at + len(stop) < best[0]):
                best = (at + len(stop), stop)
        if best is None:
            return None
        end, stop = best
        return Stop(len(window) - end + len(stop), readable(stop))

    def held_back(self, text: bytearray, end: int) -> int:
        """The number of bytes before byte `end` of `text` that could be the beginning of a stop string."""
        for length in range(min(self.longest - 1, end), 0, -1):
            tail = text[end - length : end]
            if any(len(stop) > length and stop.startswith(tail) for stop in self.stops):
                return length
        return 0
