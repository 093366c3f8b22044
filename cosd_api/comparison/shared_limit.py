"""Limit of billed tokens of a whole comparison, shared by the answers that are asked for at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

__all__ = ["SharedLimit"]

_SPILL = 16
"""Tokens beyond its limit that the questions of an answer may write, which count when they are billed."""
_ROOM = 2
"""An answer beside others may bill this many times what the contestant's largest one has billed, at least."""


@dataclass
class SharedLimit:
    """Limit of billed tokens, in shares.

    Attributes:
        most: the limit; None without one.
        billed: tells the tokens that have been billed.
        workers: number of answers that may be asked for at the same time, now.
        reached: whether what is left did not do for an answer.
    """

    most: int | None
    billed: Callable[[], int]
    workers: int = 0
    reached: bool = False
    _reserved: int = field(default=0, init=False)  # tokens that the answers in flight may bill
    _flying: int = field(default=0, init=False)  # answers that are being asked for
    _largest: dict[str, int] = field(default_factory=dict[str, int], init=False)  # bill of an answer, by contestant
    _landed: anyio.Event = field(default_factory=anyio.Event, init=False)  # set, and replaced, when one is there

    async def share(self, name: str, guess: int, least: int, goes_on: Callable[[], bool]) -> int | None:
        """The tokens that an answer may bill: an equal share of what is left, or all of it once nothing is in flight.

        Where the share might not do, the answers in flight are waited for. None if there is no limit, or if what is
        left does not do: then the limit is reached.

        Args:
            name: the contestant.
            guess: tokens that its first answer may bill.
            least: tokens without which the answer need not be tried.
            goes_on: tells if anything is to be asked any more.
        """
        if self.most is None:
            return None
        while goes_on():
            most = self._largest.get(name, 0)
            left = self.most - self.billed() - self._reserved
            each = left // max(1, self.workers - self._flying) - _SPILL
            if each >= max(_ROOM * (most or guess), least):
                return each
            if not self._flying:
                if left - _SPILL >= max(most, least, 1):
                    return left - _SPILL
                self.reached = True
                return None
            await self._landed.wait()
        return None

    def take(self, share: int | None) -> None:
        """Count an answer that is asked for now, and reserve its share."""
        self._flying += 1
        self._reserved += 0 if share is None else share + _SPILL

    def give_back(self, share: int | None) -> None:
        """Count an answer as there, whatever became of it."""
        self._flying -= 1
        self._reserved -= 0 if share is None else share + _SPILL
        self._notify()

    def ended(self) -> None:
        """Count a worker as gone."""
        self.workers -= 1
        self._notify()

    def note(self, name: str, billed: int) -> None:
        """Note what an answer of a contestant has billed."""
        self._largest[name] = max(self._largest.get(name, 0), billed)

    def words(self) -> str:
        """The reason why a comparison is over that has reached it."""
        words = f"max_billed_tokens={self.most} is reached ({self.billed():,} were billed)"
        return f"{words}: allow more, and what is known is not asked again"

    def _notify(self) -> None:
        """Wake those who wait for a part of the limit."""
        self._landed.set()
        self._landed = anyio.Event()
