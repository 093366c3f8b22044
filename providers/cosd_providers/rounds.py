"""Rounds of requests by ids, as several engines answer them: what a scored text tells, and what fits into one request.

An engine's own module derives from `Rounds`: it knows what is sent for a chain, and how an answer is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Continuation, Position, along
from cosd_providers.text import sendable

__all__ = ["Rounds"]

Shared = Callable[[Continuation, Sequence[int], Sequence[Position]], None]


class Rounds(ABC):
    """The rounds of one `propose`: `ask` is what `greedy.answer` and `Continuation` go on with.

    Args:
        prompt: what stands before the text.
        text: the response.

    Attributes:
        from_text: places whose chains went along the scored text.
    """

    def __init__(self, prompt: str, text: bytes) -> None:
        self._prompt = prompt
        self._text = text
        self.from_text: set[int] = set()

    async def ask(self, chains: list[Continuation]) -> list[Iterable[Position]]:
        """What the model goes on with in each open chain; see `greedy.answer`."""
        await self._begin(chains)
        found: dict[int, Iterable[Position]] = {}
        if not any(chain.ids for chain in chains):
            found = await self._scored(chains)
        left = [chain for chain in chains if id(chain) not in found]
        found |= zip(map(id, left), await self._generated(left), strict=True)
        return [found[id(chain)] for chain in chains]

    @abstractmethod
    async def _begin(self, chains: Sequence[Continuation]) -> None:
        """Is told which chains a round is about."""

    @abstractmethod
    async def _scored(self, chains: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """The positions of new chains that a scored text answers (`_along`), by their identity."""

    @abstractmethod
    async def _room(self, chain: Continuation, wanted: int) -> int:
        """How many tokens fit behind what is sent for a chain, or fewer, but at least `wanted` if they do."""

    @abstractmethod
    async def _too_long(self, chain: Continuation) -> ContextLengthError:
        """The error of a text behind which nothing fits."""

    @abstractmethod
    async def _written(self, chains: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        """What the server writes after each of these chains, up to so many tokens, those that it skips among them."""

    def _skipped(self, chain: Continuation) -> int:  # noqa: ARG002 - for engines that cannot go on from everywhere
        """How many of a chain's tokens the server writes again."""
        return 0

    def _before(self, place: int) -> str:
        """Prompt and text up to a place."""
        return self._prompt + sendable(self._text[:place])

    def _along(
        self,
        chains: Iterable[Continuation],
        ids: Sequence[int],
        places: Mapping[int, int],
        positions: Sequence[Position | None],
        shared: Shared | None = None,
    ) -> dict[int, Iterable[Position]]:
        """The chains that a scored text answers, as far as it is beyond doubt; by their identity.

        Args:
            chains: new ones.
            ids: the text as the model reads it.
            places: how many of these ids stand before a place, where they are the model's own encoding up to there.
            positions: what the model would have said at the last of the ids, and after them; None where in doubt.
            shared: is told of each of these chains, the ids before it, and the positions that it is given.
        """
        first = len(ids) + 1 - len(positions)
        found: dict[int, Iterable[Position]] = {}
        for chain in chains:
            place = chain.question.start
            known = _until_doubt(positions[places[place] - first :]) if place in places else []
            if known:
                if shared is not None:
                    shared(chain, ids[: places[place]], known)
                found[id(chain)] = along(chain, ids[places[place] :], known)
                self.from_text.add(place)
        return found

    async def _generated(self, chains: Sequence[Continuation]) -> list[Sequence[Position]]:
        """What the server writes after each chain, in as few requests as the context allows."""
        wanted = max((chain.wanted + self._skipped(chain) for chain in chains), default=0)
        rooms: dict[int, int] = {}
        for chain in sorted(chains, key=lambda chain: -chain.question.start):  # where the longest fits, all do
            rooms[id(chain)] = min(wanted, await self._room(chain, wanted))
        groups: dict[int, list[Continuation]] = {}
        found: dict[int, Sequence[Position]] = {}
        for chain in chains:
            room = rooms[id(chain)]
            if room > self._skipped(chain):
                groups.setdefault(room, []).append(chain)
            elif chain.ids:  # its answer has reached the end of the context: it cannot go on
                found[id(chain)] = ()
            else:  # the text itself is too long for this model
                raise await self._too_long(chain)
        for room, group in groups.items():
            found |= zip(map(id, group), await self._written(group, room), strict=True)
        return [found[id(chain)] for chain in chains]


def _until_doubt(positions: Sequence[Position | None]) -> list[Position]:
    known: list[Position] = []
    for position in positions:
        if position is None:
            break
        known.append(position)
    return known
