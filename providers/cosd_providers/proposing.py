"""The rounds of requests that answer a `propose` call.

Each round extends all open continuations, with lists of prompts, with single requests, or from a text that was scored
once. An engine derives its own class from `Rounds`; the derived class builds the requests, knows the server's limits
and reads the answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import ClassVar

from cosd_providers.contract import Context, Proposal, Question
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Continuation, Position, along, answer
from cosd_providers.strategies import Strategy, counted, marked
from cosd_providers.text import sendable
from cosd_providers.usage import Usage


class Rounds(ABC):
    """The rounds of one `propose` call."""

    # whether the server accepts only text, so that it writes some tokens of a continuation again
    by_text: ClassVar[bool] = False

    def __init__(self, context: Context, alternatives: int = 0) -> None:
        self._prompt = context.prompt
        self._text = context.text
        self._alternatives = alternatives
        self.from_text: set[int] = set()  # the places whose answers were read from the scored text

    async def propose(self, questions: Sequence[Question], strategy: Strategy, usage: Usage) -> list[Proposal | None]:
        """Answer all questions; mark each answer with the strategy that found it, and count it in the ledger."""
        found = await answer(questions, self.ask, self._alternatives)
        return counted(marked(found, self._sent_by(strategy), but=self.from_text), strategy, usage)

    async def ask(self, open_: list[Continuation]) -> list[Iterable[Position]]:
        """Find the next positions of each open continuation; see `greedy.answer`."""
        found: dict[int, Iterable[Position]] = {}
        if not any(one.ids for one in open_):
            found = await self._scored(open_)
        left = [one for one in open_ if id(one) not in found]
        found |= zip(map(id, left), await self._generated(left), strict=True)
        return [found[id(one)] for one in open_]

    def _sent_by(self, strategy: Strategy) -> Strategy:
        """The strategy to record for answers that were not read from a scored text."""
        return "list" if strategy == "echo" else strategy

    async def _scored(self, open_: Sequence[Continuation]) -> dict[int, Iterable[Position]]:  # noqa: ARG002 - a hook
        """Find the positions that a scored text shows for new continuations, keyed by their `id()`; see `_along`."""
        return {}

    @abstractmethod
    async def _room(self, one: Continuation, wanted: int) -> int:
        """Return the number of tokens that fit after a continuation's request; `wanted` or more if that many fit."""

    @abstractmethod
    async def _too_long(self, one: Continuation) -> ContextLengthError:
        """Create the error for a text that leaves no room for an answer."""

    @abstractmethod
    async def _written(self, open_: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        """Request the new positions after each continuation, in answers of at most `count` tokens."""

    def _before(self, place: int) -> str:
        """The prompt and the text up to a place."""
        return self._prompt + sendable(self._text[:place])

    def _along(
        self,
        open_: Iterable[Continuation],
        ids: Sequence[int],
        places: Mapping[int, int],
        positions: Sequence[Position | None],
    ) -> dict[int, Iterable[Position]]:
        """Return the positions that a scored text shows for new continuations, keyed by `id(continuation)`.

        Args:
            open_: new continuations.
            ids: the ids of the prompt and the text as the model reads them.
            places: the number of ids before each place. Places are left out if these ids are not the model's own
                encoding of the text up to the place.
            positions: the model's choice at each of the last ids, and after them; None for an uncertain choice.
        """
        first = len(ids) + 1 - len(positions)
        found: dict[int, Iterable[Position]] = {}
        for one in open_:
            place = one.question.start
            after = positions[places[place] - first :] if place in places else ()
            known = [position for position in takewhile(lambda position: position is not None, after) if position]
            if known:
                found[id(one)] = along(one, ids[places[place] :], known)
                self.from_text.add(place)
        return found

    async def _generated(self, open_: Sequence[Continuation]) -> list[Sequence[Position]]:
        """Request the positions after each continuation, in as few requests as the context allows."""
        again = {id(one): one.again if self.by_text else 0 for one in open_}
        wanted = max((one.wanted + again[id(one)] for one in open_), default=0)
        rooms: dict[int, int] = {}
        for one in sorted(open_, key=lambda one: -one.question.start):  # if the longest text fits, all texts fit
            rooms[id(one)] = min(wanted, await self._room(one, wanted))
        groups: dict[int, list[Continuation]] = {}
        found: dict[int, Sequence[Position]] = {}
        for one in open_:
            room = rooms[id(one)]
            if room > again[id(one)]:
                groups.setdefault(room, []).append(one)
            elif one.ids:  # the answer itself has filled the context
                found[id(one)] = ()
            else:  # the text itself is too long for this model
                raise await self._too_long(one)
        for room, group in groups.items():
            found |= zip(map(id, group), await self._written(group, room), strict=True)
        return [found[id(one)] for one in open_]
