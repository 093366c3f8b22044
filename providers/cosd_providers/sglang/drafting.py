"""A draft of SGLang: goes on from its own ids for as long as the server goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.errors import ContextLengthError, ResponseError
from cosd_providers.greedy import Choice, Draft, Position, keeps_spaces, with_alternatives
from cosd_providers.http.retries import resumed
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.reading import Events, Step
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import Answer, Run, Server
from cosd_providers.usage import Usage

__all__ = ["Drafting"]

_AT_ONCE = 256
"""Tokens that are asked for in one stream. Each event repeats all before it, so what is sent grows with the square."""


class Drafting:
    """One draft.

    Args:
        transport: the server.
        asking: the server's requests.
        server: what it is.
        start: the ids before the draft.
        alone: whether they are the prompt alone: where it is too long, that is an error.
        alternatives: how many each token comes with. Nothing is asked to learn what they say.
        usage: is billed.
    """

    def __init__(
        self,
        transport: Transport,
        asking: Asking,
        server: Server,
        start: list[int],
        *,
        alone: bool,
        alternatives: int,
        usage: Usage,
    ) -> None:
        self._transport = transport
        self._asking = asking
        self._server = server
        self._start = start
        self._alone = alone
        self._alternatives = alternatives
        self._spaced = False  # whether a token decoded alone keeps the space before a word
        self._usage = usage
        self._strings = Strings(asking, server, usage)
        self._draft = Draft(0)
        self._run: Run = ()  # ids at the end of the draft that leave a character open
        self._full = False  # whether nothing more fits

    async def draft(self, max_tokens: int) -> AsyncGenerator[Token | DraftEnd, None]:
        """At most `max_tokens` tokens, then why there are no more."""
        self._draft = Draft(max_tokens)
        while not self._draft.over:
            async with aclosing(resumed(self._answer)) as tokens:
                async for token in tokens:
                    yield token
            if self._full:
                yield DraftEnd("context")
                return
        yield DraftEnd("end") if self._draft.ended else DraftEnd("limit", (*self._start, *self._draft.ids))

    async def _answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The tokens of one answer, which goes on from all that came before."""
        sent = [*self._start, *self._draft.ids]
        wanted = self._asking.room(self._server, sent, min(self._draft.left, _AT_ONCE))
        try:
            if wanted < 1:
                raise self._asking.too_long(self._server, sent)
            async with aclosing(self._read(sent, wanted, attempt)) as tokens:
                async for token in tokens:
                    yield token
        except ContextLengthError:  # not every server tells beforehand how much it takes
            if self._alone and not self._draft.ids:
                raise
            self._full = True

    async def _read(self, sent: list[int], wanted: int, attempt: int) -> AsyncGenerator[Token, None]:
        """Reads one stream into the draft."""
        events = Events(self._server.info.endpoint, len(sent))
        body = self._asking.stream(self._server, sent, wanted, self._alternatives)
        try:
            async with self._transport.stream("/generate", body, usage=self._usage, attempt=attempt) as stream:
                async for data in stream:
                    found, text = events.feed(parse(Answer, data, self._server.info.endpoint))
                    for token in await self._tokens(found, text, stopped=events.finish == "stop"):
                        yield token
                    if self._draft.over:
                        return
        finally:
            events.bill(self._usage)
        if events.finish is None:
            words = "the stream ended before the answer did"
            raise ResponseError(words, endpoint=self._server.info.endpoint, retryable=True)
        self._full = events.seen < wanted

    async def _tokens(self, found: list[Step], text: str, *, stopped: bool) -> list[Token]:
        """The whole tokens that an event completes."""
        if found and stopped:
            self._strings.ended(found[-1].id)
        shown = found[:-1] if stopped else found
        self._strings.note([step.id for step in shown], [step.text for step in shown], text)
        runs = await self._strings.walk([step.id for step in found], self._run)
        tokens: list[Token] = []
        for run, step in zip(runs, found, strict=False):
            choice = self._strings.choice(run, step.id, step.prob)
            tokens += self._draft.feed(choice.id, self._told(choice, step))
        self._run = runs[-1]
        return tokens

    def _told(self, choice: Choice, step: Step) -> Token:
        """A token with its alternatives."""
        if not self._alternatives:
            return choice.token
        self._spaced = self._spaced or keeps_spaces(text for _, _, text in step.others)
        others = [self._strings.other(*other, spaced=self._spaced) for other in step.others]
        return with_alternatives(Position(choice, others), self._alternatives)
