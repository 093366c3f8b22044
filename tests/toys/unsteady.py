"""Toy servers that take another time for each request and token, and break at some places: any order of events.

Their time is virtual (`support.virtual_time`), so that none of it is waited out.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from hypothesis import strategies as st

from cosd_providers.contract import Context, DraftEnd, Proposal, Question, Token
from cosd_providers.errors import ServerError
from cosd_providers.testing import ScriptedProvider
from toys.id_models import Task

SECONDS: tuple[tuple[float, ...], ...] = ((0.0,), (0.1,), (0.0, 0.1, 0.35), (0.0, 9.0))
"""Seconds for one event of a server, each as likely as another."""
Order = Sequence[tuple[Sequence[float], int]]
"""For each model, the draft first: the seconds that an event may take, and the seed by which they are drawn."""


def orders() -> st.SearchStrategy[Order]:
    """Orders of events: any, and those in which one model is always faster than another."""
    return st.lists(st.tuples(st.sampled_from(SECONDS), st.integers(0, 2**16)), min_size=4, max_size=4)


def broken(what: str) -> ServerError:
    """An error that trying again does not mend."""
    return ServerError(what, endpoint="scripted:", status=500)


@dataclass
class Unsteady(ScriptedProvider):
    """A toy server.

    Attributes:
        seconds: the seconds that a token or an answer may take.
        chance: draws them.
        refuses: whether a question about a byte of the answer, and the draft's tokens there, is refused.
        breaks: whether a stream breaks that is to write the bytes between two offsets of the answer.
        early: whether a question about the start is refused that comes before the first token of `draft`.
        draft: the draft, in an assistant.
        also: the tokens that a draft lists beside one behind a text, in place of its own.
        written: number of tokens that the streams have written.
    """

    seconds: Sequence[float] = (0.0,)
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    refuses: Callable[[int, tuple[bytes, ...]], bool] = lambda *_: False
    breaks: Callable[[int, int], bool] = lambda *_: False
    early: bool = False
    draft: Unsteady | None = None
    also: Callable[[bytes, Token], tuple[Token, ...]] | None = None
    written: int = 0

    async def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        text, early = context.text, self._is_early(context)
        async with aclosing(super().generate(context, **options)) as items:
            async for item in items:
                await self._pause()
                before = text
                if isinstance(item, Token):
                    text += item.data
                    if early or self.breaks(len(before), len(text)):
                        raise broken(f"broken at {len(before)}")
                    self.written += 1
                yield self._with_others(before, item)

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, **options: Any
    ) -> list[Proposal | None]:
        found = await super().propose(context, questions, **options)
        await self._pause()
        for one in questions or ():
            if self.refuses(one.start, one.tokens):
                raise broken(f"refused at {one.start}")
        return found

    async def next_tokens(self, contexts: Sequence[Context], **options: Any) -> list[Token | None]:
        early = self._is_early(contexts[0])
        found = await super().next_tokens(contexts, **options)
        await self._pause()
        for one in contexts:
            if early or self.refuses(len(one.text), ()):
                raise broken(f"refused at {len(one.text)}")
        return found

    async def _pause(self) -> None:
        await anyio.sleep(self.chance.choice(self.seconds))

    def _is_early(self, context: Context) -> bool:
        return self.early and not context.ids and self.draft is not None and not self.draft.written

    def _with_others(self, text: bytes, item: Token | DraftEnd) -> Token | DraftEnd:
        if self.also is None or isinstance(item, DraftEnd):
            return item
        return replace(item, alternatives=self.also(text, item))


def by_ids(
    task: Task,
    order: Order,
    *,
    refuses: Callable[[int, int], bool] = lambda *_: False,
    breaks: Callable[[int, int], bool] = lambda *_: False,
    early: Collection[int] = (),
    watch: Sequence[bool] = (),
    **options: Any,
) -> dict[str, Any]:
    """The servers of a task whose models have the same ids.

    Args:
        task: the task.
        order: the seconds of their events.
        refuses: whether a model cannot be asked about a byte of the answer; the draft is -1.
        breaks: whether a stream of a model breaks there.
        early: the assistants that refuse what is asked before the draft has written anything.
        watch: the assistants that are watched.
        options: of all servers.
    """
    models = (task.draft, *task.assistants)
    made = [Unsteady(model, name=f"model {at}", ids=True, **options) for at, model in enumerate(models)]
    for at, (one, (seconds, seed)) in enumerate(zip(made, order, strict=False), -1):
        one.seconds, one.chance, one.hides_parts = seconds, random.Random(seed), task.hides

        def refused(start: int, _: object, at: int = at) -> bool:
            return refuses(at, start)

        def broken(start: int, _: object, at: int = at) -> bool:
            return breaks(at, start) or (at >= 0 and refuses(at, start))

        one.refuses, one.breaks = refused, broken
        one.early, one.draft = at in early, made[0]
    for one, wanted in zip(made[1:], watch, strict=False):
        one.watch = wanted
    return {"draft": made[0], "assistant": made[1:]}
