"""A draft of llama.cpp's server: goes on from its own ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Draft
from cosd_providers.http.retries import resumed
from cosd_providers.http.transport import Transport
from cosd_providers.llama_cpp.completions import Completions
from cosd_providers.llama_cpp.reading import Reader, Server
from cosd_providers.llama_cpp.wire import Prefix, sent
from cosd_providers.usage import Usage

__all__ = ["Drafting"]


class Drafting:
    """One draft.

    Args:
        transport: the server.
        completions: what it is asked.
        server: what it is.
        start: what stands before the draft.
        alone: whether that is the prompt alone: where it is too long, that is an error.
        alternatives: how many each token is to come with.
        usage: is billed.
    """

    def __init__(
        self,
        transport: Transport,
        completions: Completions,
        server: Server,
        start: Prefix,
        *,
        alone: bool,
        alternatives: int,
        usage: Usage,
    ) -> None:
        self._transport = transport
        self._completions = completions
        self._server = server
        self._start = start
        self._alone = alone
        self._alternatives = alternatives
        self._usage = usage
        self._draft = Draft(0)
        self._reader = Reader(server, self._draft, alternatives)

    async def draft(self, max_tokens: int) -> AsyncGenerator[Token | DraftEnd, None]:
        """At most `max_tokens` tokens, then why there are no more."""
        draft = self._draft = Draft(max_tokens)
        while not draft.over:
            async with aclosing(resumed(self._answer)) as tokens:
                async for token in tokens:
                    yield token
            if not draft.over and self._reader.full:
                yield DraftEnd("context")
                return
            if not draft.over and self._reader.hidden:
                prefix = [*self._start, *draft.ids]
                [position] = await self._completions.peek(self._server, [prefix], self._usage)
                for token in draft.feed(position.pick.id, position.pick.token):
                    yield token
        yield DraftEnd("end") if draft.ended else DraftEnd("limit", (*self._start, *draft.ids))

    async def _answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """What one stream adds to the draft, from where it stands."""
        if self._draft.over:
            return  # what broke off was only the end of the stream
        draft, reader = self._draft, Reader(self._server, self._draft, self._alternatives)
        self._reader = reader
        body = self._completions.stream(sent([*self._start, *draft.ids]), draft.left, self._alternatives)
        stream = self._transport.stream("/completion", body, usage=self._usage, keep_alive=False, attempt=attempt)
        try:
            async with stream as events:
                async for event in events:
                    for token in reader.feed(event):
                        yield token
                    if reader.done:
                        return
            raise self._server.broken("the stream ended before the answer did")
        except ContextLengthError:
            if self._alone and not draft.ids:
                raise
            reader.full = True
        finally:
            reader.bill(self._usage)
