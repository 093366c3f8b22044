"""Hedges: drafts that are started in advance, while a verdict is pending.

A replacement is often a token that the draft model found nearly as probable as its own. Therefore a draft that
continues with such a token is started before the verdict. If the verdict chooses it, that draft continues the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import anyio

from cosd_api.alignment import same
from cosd_api.decoding.answer import AnswerPath
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.commands import StartDraft
from cosd_api.decoding.pacing import Pacing
from cosd_api.decoding.verdicts import Verdicts
from cosd_providers.contract import DraftEnd, Token

LONGEST_HEDGE = 128
"""Maximum number of tokens in a hedge before its verdict. A longer hedge is cancelled."""

_SEEN = 32  # maximum number of open places to consider, because most text after them is thrown away
_FAILURES = 2  # number of failed hedges in a row after which the endpoint is assumed to serve one draft at a time

_Key = tuple[bytes, tuple[int, ...] | None]


@dataclass(slots=True, eq=False)
class Hedge:
    """A draft that was started in advance.

    Attributes:
        number: number of the draft.
        room: maximum number of tokens, those in `items` included.
        items: what it has written and the path has not taken.
        error: its error, if it failed.
        over: whether it has ended.
        scope: cancels it.
        news: event that is set when an item arrives or the hedge ends.
    """

    number: int
    room: int
    items: list[Token | DraftEnd] = field(default_factory=list[Token | DraftEnd])
    error: Exception | None = None
    over: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    news: anyio.Event = field(default_factory=anyio.Event)

    def notify(self) -> None:
        """Wake the task that takes the items."""
        news, self.news = self.news, anyio.Event()
        news.set()

    async def pour(self, take: Callable[[Token | DraftEnd], bool]) -> None:
        """Pass on all items, as they arrive, until `take` returns True or the hedge ends."""
        while True:
            while self.items:
                if take(self.items.pop(0)):
                    return
            if self.over:
                return
            await self.news.wait()


class Hedges:
    """The hedges of one answer.

    Args:
        answer: the answer.
        calls: access to the models.
        pacing: the pace.
        verdicts: the verifier.
        start: starts a background task.
    """

    def __init__(
        self, answer: AnswerPath, calls: Calls, pacing: Pacing, verdicts: Verdicts, start: Callable[..., None]
    ) -> None:
        self._answer, self._calls, self._pacing, self._verdicts, self._start = answer, calls, pacing, verdicts, start
        self._most = pacing.settings.hedge
        self._open = dict[_Key, Hedge]()
        self._tried = set[_Key]()
        self._failures = 0

    def adopt(self, command: StartDraft) -> Hedge | None:
        """Remove and return the hedge that writes what a draft would write; None if there is none."""
        continues = command.continuation is not None or (bool(command.own) and command.ids is None)
        hedge = None if continues else self._open.pop((command.text, command.ids), None)
        self._answer.counts.hedge_hits += hedge is not None
        return hedge

    def update(self) -> None:
        """Start the likeliest hedges, and cancel those that are not among them any more."""
        if not self._most or (self._answer.complete and not self._open):
            return
        answer = self._answer
        now = bytes(answer.text), answer.ids(len(answer.tokens)) if answer.by_ids else None
        wanted = {} if self._failures >= _FAILURES else dict(islice(self._likely(), self._most))
        for key in [*self._open]:
            if key not in wanted and key != now:  # the draft is about to continue from `now`
                self._tried.discard(key)
                self._open.pop(key).scope.cancel()
        for key, room in wanted.items():
            if key not in self._tried:
                self._tried.add(key)
                self._open[key] = hedge = Hedge(next(self._answer.numbers), room)
                self._answer.counts.hedged_drafts += 1
                self._start(self._write, key, hedge)

    def _likely(self) -> Iterator[tuple[_Key, int]]:
        """The texts from which the draft may have to continue, with their room; all first choices come first."""
        answer = self._answer
        last, found = min(len(answer.tokens), answer.job.max_tokens - 1), list[list[tuple[_Key, int]]]()
        for at in range(answer.judged, min(answer.judged + _SEEN, last)):
            if len(found) == self._most:
                break
            keys = [key for key in self._choices(at) if key not in self._tried or key in self._open]
            found += [[(key, answer.job.max_tokens - at - 1) for key in keys]] if keys else []
        for rank in range(self._most):
            for ways in found:
                yield from ways[rank : rank + 1]

    def _choices(self, at: int) -> list[_Key]:
        """The texts after the likeliest replacements of a token."""
        answer, mine = self._answer, self._answer.tokens[at]
        for judge in answer.judges.values():
            if (made := judge.replacement) is not None and judge.first == at:
                new = [token.id for token in made.said] if made.whole else made.ids
                ids = (*answer.ids(made.keep), *(one or 0 for one in new)) if answer.by_ids else None
                return [] if made.text is None else [(made.text, ids)]
        if not self._verdicts.contestable(at):
            return []
        text, ids = bytes(answer.text[: answer.offset(at)]), answer.ids(at) if answer.by_ids else None
        # No hedge starts after an end of sequence or after the draft's own token.
        likely = [one for one in mine.alternatives[: self._most] if one.data and not one.end and not same(one, mine)]
        return [(text + one.data, None if ids is None else (*ids, one.id or 0)) for one in likely]

    async def _write(self, key: _Key, hedge: Hedge) -> None:
        settings, window = self._pacing.settings, self._pacing.window
        hedge.room = hedge.room if window is None else min(hedge.room, window)
        also: Any = {"alternatives": settings.listed, "states": settings.states, "ids": key[1]}
        command = StartDraft(hedge.number, key[0], hedge.room, None, (), ahead=True, **also)

        def take(item: Token | DraftEnd) -> bool:
            hedge.items.append(item)
            waiting = self._open.get(key) is hedge
            if isinstance(item, Token) and waiting:
                self._answer.counts.hedged_tokens += 1
                self._failures = 0
            hedge.notify()
            if waiting and len(hedge.items) > LONGEST_HEDGE:
                del self._open[key]
                return True
            return False

        with hedge.scope:
            try:
                await self._calls.generate(0, command, take)
            except Exception as error:  # noqa: BLE001 - raised only when the answer waits for this draft
                self._failures += 1
                hedge.error = placed(error, self._answer.job.turns[0].provider)
        hedge.over = True
        if hedge.error is not None and self._open.get(key) is hedge:
            del self._open[key]  # a draft of the same text is started if the answer needs it
        hedge.notify()
