"""One greedy continuation that answers several places: the strategy of the same name, for every adapter.

The model goes on from the first open place. What it writes is its own generation from there; it is also its own
generation from a later place if, and only if, its encoding of the text up to that place is its encoding up to the
first one and the tokens that it wrote in between: then both go on from the same ids. Where that holds, the later
chain is given the same positions. It ends where the continuation first differs from the text, or where the model would
encode the text in another way than it wrote it; the next open place then starts another continuation, until none is
left. So every place is answered, some by a continuation of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Proposal, Question
from cosd_providers.scoring import Chain, Choice, Position

__all__ = ["Continuation", "Encoding", "GoOn"]

_FIRST = 16  # tokens of a continuation that are asked for at first; doubled while it says what the text says
_MOST = 512  # and at most
_BYTES = 3  # of a token, about; rather too few than too many: what is missing costs another request

Encoding = Callable[[int], Awaitable[Sequence[Hashable] | None]]
"""The model's own encoding of prompt and text up to a byte offset of the text; None where it cannot be known."""

GoOn = Callable[[list[Chain]], Awaitable[Sequence[Iterable[Position]]]]
"""What `scoring.answer` asks: for each chain about `chain.wanted` positions after `chain.ids`, none at the end."""


def _id(choice: Choice) -> Hashable:
    return choice.id


class _Own(Chain):
    """A chain that knows which tokens it took, and may be asked for more than it needs itself.

    Attributes:
        reach: how many raw tokens are asked for, at least.
        said: the bytes of the tokens that it took.
        keys: what stands for each of them, to be compared with an encoding.
    """

    def __init__(self, question: Question) -> None:
        super().__init__(question)
        self.reach = 0
        self.said = b""
        self.keys: list[Hashable] = []

    @property
    def wanted(self) -> int:
        return max(super().wanted, self.reach)


class Continuation:
    """The continuations of one call of `propose`.

    Args:
        text: the response.
        questions: what is asked.
        go_on: asks the server.
        encode: the model's own encodings; None where they cannot be known: then each place is answered by itself.
        key: what stands for a token, to be compared with the elements of an encoding; its id by default. Equal ones are
            the same token; what cannot be compared is equal to nothing.
        shared: is told of a chain that goes along another one's continuation, before it is given the positions: the
            encoding up to its place, and these.
    """

    def __init__(
        self,
        text: bytes,
        questions: Iterable[Question],
        go_on: GoOn,
        encode: Encoding | None,
        *,
        key: Callable[[Choice], Hashable] = _id,
        shared: Callable[[Chain, Sequence[Hashable], Sequence[Position]], None] | None = None,
    ) -> None:
        self._text = text
        self._chains = [_Own(question) for question in questions]
        self._go_on = go_on
        self._encode = encode
        self._key = key
        self._shared = shared
        self._encodings: dict[int, Sequence[Hashable] | None] = {}

    async def answer(self) -> list[Proposal | None]:
        """Goes on until every question has its chain; the answers come in the order of the questions."""
        order = sorted(self._chains, key=lambda chain: chain.question.start)
        length = _FIRST
        while left := [chain for chain in order if not chain.enough]:
            leader, *others = left
            leader.reach = min(self._needed(leader, left[-1]), length) if others else 0
            positions = list((await self._go_on([leader]))[0])
            before, keys = self._before(leader), [*leader.keys]
            self._feed(leader, positions)
            if others and positions:
                start = leader.question.start
                await self._share(start, before, keys, positions, [chain for chain in others if not chain.enough])
            whole = before + b"".join(position.pick.token.data for position in positions)
            length = min(2 * length, _MOST) if self._text.startswith(whole) else _FIRST
        return [chain.proposal() for chain in self._chains]

    def _needed(self, first: _Own, last: _Own) -> int:
        """About how many tokens lead to the last open place and answer it; none where only the first is answered."""
        if self._encode is None:
            return 0
        between = last.question.start - first.question.start - len(first.said)
        return max(between, 0) // _BYTES + last.wanted

    def _before(self, chain: _Own) -> bytes:
        """The text that a chain goes on from."""
        return self._text[: chain.question.start] + chain.said

    async def _share(
        self, start: int, before: bytes, keys: list[Hashable], positions: list[Position], chains: list[_Own]
    ) -> None:
        """Gives the positions to other chains, each from where it stands in them.

        Args:
            start: the place of the chain that was asked.
            before: the text that it went on from.
            keys: its tokens since its place, up to there.
            positions: what followed.
            chains: the others.
        """
        passed, ends = before, {before}
        for position in positions:
            passed += position.pick.token.data
            ends.add(passed)
        near = [chain for chain in chains if self._before(chain) in ends]
        if near:
            await self._learn({start, *(chain.question.start for chain in near)})
        first = self._encodings.get(start)
        for chain in near:
            own = self._encodings.get(chain.question.start)
            if own is None or first is None:
                continue
            theirs = [*first, *keys, *(self._key(position.pick) for position in positions)]
            mine = [*own, *chain.keys]
            at = len(mine) - len(first) - len(keys)
            if 0 <= at < len(positions) and theirs[: len(mine)] == mine:
                if self._shared is not None:
                    self._shared(chain, own, positions[at:])
                self._feed(chain, positions[at:])

    async def _learn(self, places: set[int]) -> None:
        """Encodes the text up to each of the places, where that was not done."""
        if self._encode is None:
            return
        missing = [place for place in sorted(places) if place not in self._encodings]
        found = await concurrently([partial(self._encoded, self._encode, place) for place in missing])
        self._encodings.update(zip(missing, found, strict=True))

    @staticmethod
    async def _encoded(encode: Encoding, place: int) -> Sequence[Hashable] | None:
        return await encode(place)

    def _feed(self, chain: _Own, positions: Sequence[Position]) -> None:
        """Gives a chain what follows, and notes what it took of it."""
        had = len(chain.ids)
        chain.feed(positions)
        for taken, position in zip(chain.ids[had:], positions, strict=False):
            choice = next(choice for choice in (position.pick, *position.top) if choice.id == taken)
            chain.said += choice.token.data
            chain.keys.append(self._key(choice))
