"""Servers that take their time, each as it likes: for tests in virtual time whose order of events is drawn."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio

from cosd_providers import Context, DraftEnd, Question, Token
from cosd_providers.contract import Piece, Proposal
from cosd_providers.testing import ScriptedProvider
from cosd_providers.usage import Usage

SCALES = (0.0, 0.0, 0.02, 0.1, 0.35, 4.0)
"""Usual seconds of one kind of event, of which each order draws one."""
JITTER = (0.0, 0.5, 1.0, 1.0, 1.5, 6.0)
"""Factors by which one event is slower."""


@dataclass(kw_only=True)
class Late(ScriptedProvider):
    """A provider whose every step takes a time that is drawn.

    Attributes:
        order: seed of all times.
        broken: by the name of a method, the error that it raises at a call, given the number of calls before.
    """

    order: str = ""
    broken: Callable[[str, int], Exception | None] | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.order} {self.name}")
        kinds = ("begin", "token", "close", "question", "encode")
        self._scales = {kind: self._chance.choice(SCALES) for kind in kinds}

    async def _pass(self, kind: str) -> None:
        await anyio.sleep(self._scales[kind] * self._chance.choice(JITTER))

    def _break(self, method: str) -> None:
        before = self.counts.get(method, 0)
        self.counts[method] = before + 1
        error = None if self.broken is None else self.broken(method, before)
        if error is not None:
            raise error

    async def generate(
        self, context: Context, *, max_tokens: int, usage: Usage, **options: Any
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Stream tokens; to close the stream takes time as well."""
        await self._pass("begin")
        self._break("generate")
        async with aclosing(super().generate(context, max_tokens=max_tokens, usage=usage, **options)) as items:
            try:
                async for item in items:
                    await self._pass("token")
                    yield item
            finally:
                with anyio.CancelScope(shield=True):
                    await self._pass("close")

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Answer questions."""
        await self._pass("question")
        self._break("next_tokens")
        found = await super().next_tokens(contexts, alternatives=alternatives, usage=usage)
        await self._pass("question")
        return found

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """Answer questions by text."""
        await self._pass("question")
        self._break("propose")
        found = await super().propose(context, questions, alternatives=alternatives, usage=usage)
        await self._pass("question")
        return found

    async def encode(self, text: str) -> list[Piece]:
        """Encode a text."""
        await self._pass("encode")
        self._break("encode")
        return await super().encode(text)
