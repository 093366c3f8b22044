"""The draft that is under way, and what the next one goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cosd_api.decoding.commands import CancelDraft, StartDraft
from cosd_api.decoding.pending import Pending
from cosd_api.decoding.response import Response


class Drafts:
    """One draft after another.

    Args:
        length: the paper's fixed rounds of K tokens; None drafts on without rounds.
        max_ahead: how many tokens may be drafted beyond what is settled; an open unit is always completed.

    Attributes:
        under_way: number of the draft under way.
        left: how many tokens it may still write.
        error: what broke the last one, behind everything that is pending.
    """

    def __init__(self, length: int | None, max_ahead: int | None) -> None:
        self.length = length
        self.max_ahead = max_ahead
        self.under_way: int | None = None
        self.left = 0
        self.error: Exception | None = None
        self._count = 0
        self._continuation: Any = None
        self._own = 0  # index of the first token that the draft wrote since the start, or since it began anew

    def start(self, pending: Sequence[Pending], response: Response) -> list[StartDraft]:
        """Drafts on, unless a draft is under way or enough is drafted ahead of what is settled."""
        if self.under_way is not None or response.over or self.error is not None:
            return []
        if pending and pending[-1].doomed and pending[-1].waiting:
            return []
        most = response.max_tokens - len(response.tokens)
        waiting = any(unit.waiting for unit in pending)
        if self.length is not None:
            if waiting:
                return []
            most = min(most, self.length)
        if self.max_ahead is not None:
            ahead = len(response.tokens) - response.settled
            # A half-empty window is refilled at once, not token by token; an open unit must always go on.
            if waiting and ahead > self.max_ahead // 2:
                return []
            most = min(most, max(1, self.max_ahead - ahead))
        self.under_way, self.left = self.number(), most
        own = tuple(placed.token.data for placed in response.tokens[self._own :])
        return [StartDraft(self.under_way, bytes(response.text), most, self._continuation, own)]

    def number(self) -> int:
        """The number of one more draft."""
        self._count += 1
        return self._count

    def take_over(self, started: StartDraft) -> None:
        """A draft that was started ahead is the one under way."""
        self.under_way, self.left = started.draft, started.max_tokens

    def ended(self, continuation: Any = None, error: Exception | None = None) -> None:
        """The draft under way is over: the next one goes on from its continuation, or it has failed."""
        self.under_way, self.error = None, error
        if error is None:
            self._continuation = continuation

    def cancel(self) -> list[CancelDraft]:
        """Nobody waits for the draft under way any more."""
        cancelled = [] if self.under_way is None else [CancelDraft(self.under_way)]
        self.under_way = None
        return cancelled

    def drop(self) -> list[CancelDraft]:
        """What was drafted last is thrown away; nothing goes on from there."""
        self._continuation = self.error = None
        return self.cancel()

    def begin_anew(self, response: Response) -> None:
        """The next draft goes on from the text as it stands, none of which is its own."""
        self._own = len(response.tokens)
