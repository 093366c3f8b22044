"""Controls: an assistant that answers a different question, and a simulated network delay."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio

from cosd_api.forcing.samples import Example
from cosd_providers.contract import Context, DraftEnd, Proposal, Provider, Question, Token
from cosd_providers.forwarding import Forwarding
from cosd_providers.usage import Usage

__all__ = ["Distant", "Shuffled", "shuffled"]


class _Wrapped(Forwarding):
    """A provider that modifies each request to another provider."""

    def generate(self, context: Context, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        """See `Provider.generate`."""
        return self._later(self._provider.generate(self._read(context), **options))

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """See `Provider.propose`."""
        await self._wait()
        return await self._provider.propose(self._read(context), questions, alternatives=alternatives, usage=usage)

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """See `Provider.score`."""
        await self._wait()
        return await self._provider.score(self._read(context), alternatives=alternatives, end=end, usage=usage)

    async def _later(self, several: AsyncGenerator[Token | DraftEnd, None]) -> AsyncGenerator[Token | DraftEnd, None]:
        await self._wait()
        async with aclosing(several):
            async for one in several:
                yield one

    def _read(self, context: Context) -> Context:
        """The context to pass on to the provider."""
        return context

    async def _wait(self) -> None:
        """Wait before a request is sent."""


def shuffled(provider: Provider, examples: Sequence[Example]) -> Shuffled:
    """Turn a provider into an assistant that never reads the right question: it reads the next prompt instead."""
    prompts = [one.prompt for one in examples if isinstance(one.prompt, str)]
    return Shuffled(provider, dict(zip(prompts, [*prompts[1:], *prompts[:1]], strict=True)))


class Shuffled(_Wrapped):
    """A provider that reads a different prompt from the one that it is given.

    Args:
        provider: the provider that answers.
        prompts: for each prompt that may be given, the prompt to read instead; any other prompt is an error.
    """

    def __init__(self, provider: Provider, prompts: dict[str, str]) -> None:
        super().__init__(provider)
        self._prompts = prompts

    def _read(self, context: Context) -> Context:
        prompt = context.prompt
        if prompt not in self._prompts:
            raise ValueError(f"no other question is known for the prompt {prompt!r}, so it would not be shuffled")
        return replace(context, prompt=self._prompts[prompt])


class Distant(_Wrapped):
    """A provider behind a simulated network: each request waits before it is sent.

    Args:
        provider: the provider that answers.
        seconds: seconds to wait, for both directions together; each call waits once, even if it sends several requests.
    """

    def __init__(self, provider: Provider, seconds: float) -> None:
        super().__init__(provider)
        self._seconds = seconds

    async def _wait(self) -> None:
        await anyio.sleep(self._seconds)
