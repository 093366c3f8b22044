"""How vLLM's proposals are made: rounds of lists, or one scored text, with the same answers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Token
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.wire import Completion, steps
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import TIES, Choice, Continuation, Position, check_own
from cosd_providers.proposing import Rounds
from cosd_providers.text import sendable
from cosd_providers.usage import Usage
from cosd_providers.vllm.asking import MOST, Asking
from cosd_providers.vllm.reading import Scored, closed, doubtful, equals
from cosd_providers.vllm.wire import Prompt, Server

__all__ = ["Proposing"]


@dataclass(slots=True)
class Place:
    """Where a chain stands.

    Attributes:
        head: the ids of the text before it, once known.
        safe: how many of its ids end with a whole character. Only from there does the server go on rightly: behind
            an unfinished character it repeats text of the prompt.
        given: how many ids the chain had when it was last given positions, and these.
    """

    head: list[int] | None = None
    safe: int = 0
    given: tuple[int, Sequence[Position]] = field(default=(0, ()))

    def settle(self, chain: Continuation) -> None:
        """Notes how far the chain took what it was given."""
        had, positions = self.given
        for at, (taken, position) in enumerate(zip(chain.ids[had:], positions, strict=False), had + 1):
            choices = (position.pick, *position.top)
            if not next(choice for choice in choices if choice.id == taken).open:
                self.safe = at


class Proposing(Rounds):
    """The rounds of one `propose`; see `Rounds`.

    Args:
        asking: the server's requests.
        server: what it is.
        prompt: what stands before the text.
        text: the response.
        usage: is billed.
        singly: whether each prompt has its own request.
        scored: the scored text, where there is one.
    """

    def __init__(
        self,
        asking: Asking,
        server: Server,
        prompt: str,
        text: bytes,
        usage: Usage,
        *,
        singly: bool = False,
        scored: Scored | None = None,
    ) -> None:
        super().__init__(prompt, text)
        self._asking = asking
        self._server = server
        self._usage = usage
        self._singly = singly
        self._scored_text = scored
        self._places: dict[int, Place] = {}

    def share(self, chain: Continuation, own: Sequence[Hashable], positions: Sequence[Position]) -> None:
        """Notes that a chain, whose text has these ids before it, is given positions that were asked for another."""
        place = self._places.setdefault(id(chain), Place())
        place.settle(chain)
        place.head, place.given = [*cast("Sequence[int]", own)], (len(chain.ids), positions)

    async def _begin(self, chains: Sequence[Continuation]) -> None:
        for chain in chains:
            self._places.setdefault(id(chain), Place()).settle(chain)

    async def _scored(self, chains: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """The chains that the scored text answers: its encoding up to there is the model's own."""
        scored = self._scored_text
        if scored is None:
            return {}
        start = len(self._prompt.encode())
        ends, at = {0: 0}, 0
        for count, piece in enumerate(scored.pieces, 1):
            at += len(piece.data)
            ends[at] = count
        ids = [piece.id for piece in scored.pieces]
        counts = {chain.question.start: ends.get(start + chain.question.start) for chain in chains}
        places = [(place, count) for place, count in counts.items() if count is not None]

        async def own(place: int, count: int) -> bool:
            return (
                count == len(ids) or await self._asking.ids(self._server.info.model, self._before(place)) == ids[:count]
            )

        exact = await concurrently([partial(own, *place) for place in places])
        beginning = self._server.beginning
        usable = {place: len(beginning) + count for (place, count), right in zip(places, exact, strict=True) if right}
        return self._along(chains, [*beginning, *ids], usable, scored.positions, self.share)

    async def _room(self, chain: Continuation, wanted: int) -> int:
        return await self._asking.room(self._server, self._prefix(chain), wanted)

    async def _too_long(self, chain: Continuation) -> ContextLengthError:
        return self._asking.too_long(self._server, await self._room(chain, 1))

    async def _written(self, chains: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        prompts, model = [self._prefix(chain) for chain in chains], self._server.info.model
        answers = await self._asking.batch(model, prompts, count, self._usage, singly=self._singly)
        return [await self._read(chain, answer) for chain, answer in zip(chains, answers, strict=True)]

    def _prefix(self, chain: Continuation) -> Prompt:
        """From where the server is asked to go on."""
        place = self._places[id(chain)]
        if place.head is not None:
            return [*place.head, *chain.ids[: place.safe]]
        return self._before(chain.question.start) + sendable(chain.turned[1])

    def _skipped(self, chain: Continuation) -> int:
        """How many of the chain's tokens the server writes again."""
        place = self._places[id(chain)]
        return len(chain.ids) - (chain.turned[0] if place.head is None else place.safe)

    async def _read(self, chain: Continuation, answer: Completion) -> Sequence[Position]:
        """The new positions of an answer; where two tokens are equally probable, each with its own id and bytes."""
        place, skipped = self._places[id(chain)], self._skipped(chain)
        prefix = self._prefix(chain)
        if answer.prompt_token_ids is not None and place.head is None and not chain.ids:
            place.head = answer.prompt_token_ids
        spelling = TokenAligner(self._server.info.endpoint, self._server.ends, bare=self._server.bare)
        positions = closed(list(spelling.feed(answer)), answer)
        for position in positions:
            if not position.pick.token.end:
                check_own(position.pick.token.prob, self._server.info.endpoint)
        ids = answer.token_ids or ()
        start = prefix if isinstance(prefix, list) else answer.prompt_token_ids
        if start is not None and len(ids) >= len(positions):
            doubts = [
                at
                for at in range(skipped, len(positions))
                if doubtful(positions[at]) and not (at and positions[at - 1].pick.open)
            ]
            asked: list[Prompt] = [[*start, *ids[:at]] for at in doubts]
            for at, position in zip(doubts, await self._resolved([positions[at] for at in doubts], asked), strict=True):
                positions[at] = position
        place.given = (len(chain.ids), positions[skipped:])
        return positions[skipped:]

    async def _resolved(self, positions: Sequence[Position], prefixes: Sequence[Prompt]) -> list[Position]:
        """The same positions, asked again by ids."""
        if not positions:
            return []
        many = any(len(equals(position)) == len(position.top) for position in positions)  # there may be more
        most = MOST if many else TIES  # all that were listed may be tied
        more: dict[str, Any] = {"return_tokens_as_token_ids": True, "logprobs": most}
        answers = await self._asking.batch(self._server.info.model, prefixes, 1, self._usage, **more)
        found: list[Position] = []
        for position, answer in zip(positions, answers, strict=True):
            [step] = steps(answer)
            best = max(other.prob or 0.0 for other in step.top)
            tied = sorted(other.id for other in step.top if other.id is not None and other.prob == best)
            if position.pick.id not in tied:  # the server's arithmetic is not quite the same twice
                found.append(replace(position, top=()))
                continue
            pick = replace(position.pick, token=replace(position.pick.token, prob=best))
            others = [await self._choice(token_id, best) for token_id in tied if token_id != pick.id]
            found.append(Position(pick, others))
        return found

    async def _choice(self, token_id: int, best: float) -> Choice:
        data = await self._asking.says(self._server, token_id, self._usage)
        if token_id in self._server.ends:
            return Choice(token_id, Token(b"", best, end=True, name=(data or b"").decode() or None))
        return Choice(token_id, Token(data or b"", best), not data)
