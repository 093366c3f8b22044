"""A draft of vLLM: goes on from its own ids for as long as the server goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.wire import Answer, Billed, bill, steps
from cosd_providers.errors import ResponseError
from cosd_providers.greedy import Draft, Position, check_greedy, check_own, with_alternatives
from cosd_providers.http.retries import resumed
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.text import sendable
from cosd_providers.usage import Usage
from cosd_providers.vllm.asking import Asking
from cosd_providers.vllm.wire import Prompt, Server, checked, special

__all__ = ["Drafting"]

_AGAIN = 2  # attempts at one more token, all but the last ones, in which a server writes again what it wrote


class Drafting:
    """One draft.

    Args:
        transport: the server.
        asking: the server's requests.
        server: what it is.
        prefix: what stands before the draft: ids, or prompt and text as one.
        alone: whether that is the prompt alone: where it is too long, that is an error.
        alternatives: how many each token is to come with, as far as the server tells them.
        usage: is billed.
    """

    def __init__(
        self,
        transport: Transport,
        asking: Asking,
        server: Server,
        prefix: Prompt,
        *,
        alone: bool,
        alternatives: int,
        usage: Usage,
    ) -> None:
        self._transport = transport
        self._asking = asking
        self._server = server
        self._text = "" if isinstance(prefix, list) else prefix
        self._start = prefix if isinstance(prefix, list) else None
        self._alone = alone
        self._alternatives = alternatives
        self._usage = usage
        self._draft = Draft(0)
        self._given = b""  # of the draft, behind the text
        self._safe = 0  # ids of the draft that end with a whole character
        self._seen = 0  # tokens of the answer that is being read
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
        known = None if self._start is None else (*self._start, *self._draft.ids)
        yield DraftEnd("end") if self._draft.ended else DraftEnd("limit", known)

    async def _answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The new tokens of one answer; the first ones of it may be known.

        A server that tells ids goes on from them. Another one writes again what it wrote. Where it breaks off once more
        before there is anything new, it goes on from the text: it may have a limit of its own.
        """
        if attempt > _AGAIN:
            self._from_text()
        sent = self._text if self._start is None else [*self._start, *self._draft.ids[: self._safe]]
        skipped = len(self._draft.ids) - self._safe
        # Twice what is skipped: a model that says nothing for long is not asked again at each of its tokens.
        wanted = self._draft.left + 2 * skipped
        room = await self._asking.room(self._server, sent, wanted)
        if room <= skipped:
            if self._alone and not self._draft.ids and not self._given:
                raise self._asking.too_long(self._server, room)
            self._full = True
            return
        async with aclosing(self._read(sent, min(wanted, room), skipped, attempt)) as tokens:
            async for token in tokens:
                yield token
        if self._draft.over:
            return
        self._full = room <= self._seen < wanted
        short = self._seen < wanted  # it would be cut there again
        if not self._full and not (short and self._from_text()) and self._seen <= skipped:
            words = "the server stopped without a token and without a reason"
            raise ResponseError(words, endpoint=self._server.info.endpoint, retryable=True)

    def _from_text(self) -> bool:
        """Goes on from the text, where the server tells no ids; whether it has grown."""
        if self._start is not None or not self._given:
            return False
        self._text += sendable(self._given)
        self._draft, self._given = Draft(self._draft.left), b""
        return True

    async def _read(self, sent: Prompt, limit: int, skipped: int, attempt: int) -> AsyncGenerator[Token, None]:
        """Reads one stream into the draft."""
        self._seen = 0
        async with aclosing(self._stream(sent, limit, attempt)) as events:
            async for prompt_ids, positions in events:
                if isinstance(sent, str) and prompt_ids is not None:
                    self._asking.counts.seen(sent, len(prompt_ids))
                self._start = self._start or prompt_ids
                for position in positions:
                    self._seen += 1
                    if self._seen <= skipped:
                        continue
                    for token in self._draft.feed(position.pick.id, self._told(position)):
                        self._given += token.data
                        yield token
                    if self._start and not position.pick.open:
                        self._safe = len(self._draft.ids)
                if self._draft.over:
                    return

    def _told(self, position: Position) -> Token:
        """The server's own token, with its alternatives where these are wanted and known from their strings."""
        if not self._alternatives or self._server.bare is not False:  # a string may have lost its space
            return position.pick.token
        told = [choice for choice in position.top if not special(choice.token.data.decode(errors="replace").strip())]
        return with_alternatives(Position(position.pick, told), self._alternatives)

    async def _stream(
        self, sent: Prompt, limit: int, attempt: int
    ) -> AsyncGenerator[tuple[list[int] | None, list[Position]], None]:
        """The prompt's ids, where told, and the positions of each event."""
        endpoint, done, billed = self._server.info.endpoint, False, None
        spelling = TokenAligner(endpoint, self._server.ends, bare=self._server.bare)
        body = self._asking.stream(self._server.info.model, sent, limit, self._alternatives)
        try:
            stream = self._transport.stream("/v1/completions", body, usage=self._usage, attempt=attempt)
            async with stream as events:
                async for data in events:
                    event = parse(Answer, data, endpoint)
                    if _twice(event, billed):
                        continue
                    billed = event.usage or billed
                    for completion in event.choices:
                        done = checked(completion, endpoint).finish_reason is not None
                        positions = list(spelling.feed(completion))
                        for position in positions:
                            own = position.pick.token
                            if not own.end:
                                check_own(own.prob, endpoint)
                            check_greedy(own.prob, (choice.token.prob for choice in position.top), endpoint)
                        yield completion.prompt_token_ids, positions
        finally:
            bill(self._usage, billed)
        if not done:
            raise ResponseError("the stream ended before the answer did", endpoint=endpoint, retryable=True)


def _twice(event: Answer, billed: Billed | None) -> bool:
    """Whether an event was sent once more: it has tokens, and none were written since the one before."""
    told = event.usage and event.usage.completion_tokens
    return bool(billed and told and told == billed.completion_tokens and any(map(steps, event.choices)))
