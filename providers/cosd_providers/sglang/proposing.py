"""How SGLang's proposals are made: one scored text, or rounds of lists, with the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cosd_providers.contract import Usage
from cosd_providers.scoring import Chain, Position, along
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.echo import Echo
from cosd_providers.sglang.reading import Step, steps
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import Answer, Run, Server
from cosd_providers.text import sendable

__all__ = ["Proposing"]

_MANY = 64  # most probable tokens where all that were listed are tied


@dataclass(slots=True)
class _Round:
    """What the server wrote after one chain: which open ids stood before each token, and the tokens."""

    prompt: list[int]
    found: list[Step]
    runs: Sequence[Run] = field(default=())


class Proposing:
    """The rounds of one `propose`.

    Args:
        asking: the server's requests.
        server: what it is.
        prompt: what stands before the text.
        text: the response.
        usage: is billed.
        echo: whether the text is scored first, where several places of it are asked.
        singly: whether each prompt has its own request.

    Attributes:
        from_text: the places that the scored text has answered, or begun to.
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
        self._asking = asking
        self._server = server
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._echo = echo
        self._singly = singly
        self._strings = Strings(asking, server, usage)
        self._heads: dict[int, list[int]] = {}  # what the model reads before each place
        self.from_text: set[int] = set()

    async def ask(self, chains: list[Chain]) -> list[Iterable[Position]]:
        """What the model goes on with in each open chain; see `scoring.answer`."""
        await self.prepare(chain.question.start for chain in chains)
        found: dict[int, Iterable[Position]] = {}
        if self._echo and not any(chain.ids for chain in chains):
            found = await self._scored(chains)
        left = [chain for chain in chains if id(chain) not in found]
        found |= zip(map(id, left), await self._generated(left), strict=True)
        return [found[id(chain)] for chain in chains]

    async def encode(self, place: int) -> list[int]:
        """The ids that the model reads up to a place."""
        await self.prepare([place])
        return self._heads[place]

    async def prepare(self, places: Iterable[int]) -> None:
        """Encodes the text up to each place, all at once."""
        new = sorted({*places} - {*self._heads})
        texts = [self._prompt + sendable(self._text[:place]) for place in new]
        self._heads |= zip(new, await self._asking.prompts(self._server, texts), strict=True)

    async def _scored(self, chains: list[Chain]) -> dict[int, Iterable[Position]]:
        """The chains that the scored text answers: its encoding up to there is the model's own."""
        whole = await self.encode(len(self._text))
        heads = {chain.question.start: self._heads[chain.question.start] for chain in chains}
        places = {start: len(head) for start, head in heads.items() if head and whole[: len(head)] == head}
        if len(places) < 2 or self._asking.room(self._server, whole, 1) < 1:
            return {}
        start = min(places)
        first = places[start]
        echo = Echo(self._asking, self._server, self._strings, self._usage)
        positions = await echo.positions(whole, first, sendable(self._text[start:]).encode())
        found: dict[int, Iterable[Position]] = {}
        for chain in chains:
            count = places.get(chain.question.start)
            known = [] if count is None else _until_doubt(positions[count - first :])
            if known:
                found[id(chain)] = along(chain, whole[count:], known)
                self.from_text.add(chain.question.start)
        return found

    async def _generated(self, chains: list[Chain]) -> list[Sequence[Position]]:
        """What the server writes after each chain, in as few requests as the context allows."""
        wanted = max((chain.wanted for chain in chains), default=0)
        groups: dict[int, list[Chain]] = {}
        found: dict[int, Sequence[Position]] = {}
        for chain in chains:
            prompt = self._ids(chain)
            room = self._asking.room(self._server, prompt, wanted)
            if room > 0:
                groups.setdefault(room, []).append(chain)
            elif chain.ids:  # its answer has reached the end of the context: it cannot go on
                found[id(chain)] = ()
            else:  # the text itself is too long for this model
                raise self._asking.too_long(self._server, prompt)
        for room, group in groups.items():
            prompts = [self._ids(chain) for chain in group]
            answers = await self._asking.batch(self._server, prompts, room, self._usage, singly=self._singly)
            found |= zip(map(id, group), await self._read(group, prompts, answers), strict=True)
        return [found[id(chain)] for chain in chains]

    def _ids(self, chain: Chain) -> list[int]:
        return [*self._heads[chain.question.start], *chain.ids]

    async def _read(
        self, chains: Sequence[Chain], prompts: Sequence[list[int]], answers: Sequence[Answer]
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


def _until_doubt(positions: Sequence[Position | None]) -> list[Position]:
    known: list[Position] = []
    for position in positions:
        if position is None:
            break
        known.append(position)
    return known
