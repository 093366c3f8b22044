"""How SGLang's proposals are made: one scored text, or rounds of lists, with the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Continuation, Position
from cosd_providers.proposing import Rounds
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.echo import Echo
from cosd_providers.sglang.reading import Step, steps
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import Answer, Run, Server
from cosd_providers.text import sendable
from cosd_providers.usage import Usage

__all__ = ["Proposing"]

_MANY = 64  # most probable tokens where all that were listed are tied


@dataclass(slots=True)
class _Round:
    """What the server wrote after one chain: which open ids stood before each token, and the tokens."""

    prompt: list[int]
    found: list[Step]
    runs: Sequence[Run] = field(default=())


class Proposing(Rounds):
    """The rounds of one `propose`; see `Rounds`.

    Args:
        asking: the server's requests.
        server: what it is.
        prompt: what stands before the text.
        text: the response.
        usage: is billed.
        echo: whether the text is scored first, where several places of it are asked.
        singly: whether each prompt has its own request.
    """

    def __init__(
        self,
        asking: Asking,
        server: Server,
        prompt: str,
        text: bytes,
        usage: Usage,
        *,
        echo: bool = False,
        singly: bool = False,
    ) -> None:
        super().__init__(prompt, text)
        self._asking = asking
        self._server = server
        self._usage = usage
        self._echo = echo
        self._singly = singly
        self._strings = Strings(asking, server, usage)
        self._heads: dict[int, list[int]] = {}  # what the model reads before each place

    async def encode(self, place: int) -> list[int]:
        """The ids that the model reads up to a place."""
        await self.prepare([place])
        return self._heads[place]

    async def prepare(self, places: Iterable[int]) -> None:
        """Encodes the text up to each place, all at once."""
        new = sorted({*places} - {*self._heads})
        texts = [self._before(place) for place in new]
        self._heads |= zip(new, await self._asking.prompts(self._server, texts), strict=True)

    async def _begin(self, chains: Sequence[Continuation]) -> None:
        await self.prepare(chain.question.start for chain in chains)

    async def _scored(self, chains: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """The chains that the scored text answers: its encoding up to there is the model's own."""
        if not self._echo:
            return {}
        whole = await self.encode(len(self._text))
        heads = {chain.question.start: self._heads[chain.question.start] for chain in chains}
        places = {start: len(head) for start, head in heads.items() if head and whole[: len(head)] == head}
        if len(places) < 2 or self._asking.room(self._server, whole, 1) < 1:
            return {}
        start = min(places)
        echo = Echo(self._asking, self._server, self._strings, self._usage)
        positions = await echo.positions(whole, places[start], sendable(self._text[start:]).encode())
        return self._along(chains, whole, places, positions)

    async def _room(self, chain: Continuation, wanted: int) -> int:
        return self._asking.room(self._server, self._ids(chain), wanted)

    async def _too_long(self, chain: Continuation) -> ContextLengthError:
        return self._asking.too_long(self._server, self._ids(chain))

    async def _written(self, chains: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        prompts = [self._ids(chain) for chain in chains]
        answers = await self._asking.batch(self._server, prompts, count, self._usage, singly=self._singly)
        return await self._read(chains, prompts, answers)

    def _ids(self, chain: Continuation) -> list[int]:
        return [*self._heads[chain.question.start], *chain.ids]

    async def _read(
        self, chains: Sequence[Continuation], prompts: Sequence[list[int]], answers: Sequence[Answer]
    ) -> list[Sequence[Position]]:
        """The positions of several answers; where tokens are equally probable, all of them."""
        endpoint = self._server.info.endpoint
        rounds = [_Round(ids, steps(answer, endpoint)) for ids, answer in zip(prompts, answers, strict=True)]
        for one, answer in zip(rounds, answers, strict=True):
            _note(self._strings, one.found, answer)
        await self._widen([(one, at) for one in rounds for at, step in enumerate(one.found) if step.more])
        await self._strings.know((step.id,) for one in rounds for step in one.found)
        for chain, one in zip(chains, rounds, strict=True):
            one.runs = await self._strings.walk([step.id for step in one.found], self._strings.open(chain.ids))
        tied = [
            (*run, other)
            for one in rounds
            for run, step in zip(one.runs, one.found, strict=False)
            for other in step.tied
        ]
        await self._strings.know(tied)
        return [[self._position(run, step) for run, step in zip(one.runs, one.found, strict=False)] for one in rounds]

    async def _widen(self, doubts: Sequence[tuple[_Round, int]]) -> None:
        """Asks again where all tokens that were listed are equally probable: there may be more of them."""
        if not doubts:
            return
        prompts = [[*one.prompt, *(step.id for step in one.found[:at])] for one, at in doubts]
        answers = await self._asking.batch(self._server, prompts, 1, self._usage, singly=self._singly, top=_MANY)
        for (one, at), answer in zip(doubts, answers, strict=True):
            [again] = steps(answer, self._server.info.endpoint)
            tied = again.tied if one.found[at].id in again.tied else ()  # its arithmetic is not quite the same twice
            one.found[at] = replace(one.found[at], tied=tied)

    def _position(self, run: Run, step: Step) -> Position:
        """A step as scoring takes it: of the tokens that it did not take, those that are as probable."""
        alone = step.tied in ((), (step.id,))
        value = step.prob if alone else step.best
        others = () if alone else [self._strings.choice(run, n, value) for n in step.tied if n != step.id]
        return Position(self._strings.choice(run, step.id, value), others)


def _note(strings: Strings, found: Sequence[Step], answer: Answer) -> None:
    """Learns what tokens say from an answer's text, and which one ends it."""
    finish = answer.meta_info.finish_reason
    if found and finish is not None and finish.type == "stop":
        strings.ended(found[-1].id)
        found = found[:-1]
    strings.note([step.id for step in found], [step.text for step in found], answer.text or "")
