"""A draft of TGI, which takes text only: it is asked again from the same text with more tokens, as seldom as can be."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.greedy import Draft, Position, is_plain, keeps_spaces, with_alternatives
from cosd_providers.http.retries import resumed
from cosd_providers.text import readable, sendable
from cosd_providers.tgi.reading import Server
from cosd_providers.tgi.requests import Requests
from cosd_providers.tgi.wire import Event
from cosd_providers.usage import Usage

__all__ = ["Drafting"]

_AGAIN = 2  # attempts at one more token, all but the last ones, in which a server writes again what it wrote
_MORE = 4  # raw tokens that are asked for at least, to finish a character
_EACH = 4  # raw tokens that a whole token takes at most, silent ones apart


class Drafting:
    """One draft. What was given out stands, whatever the server writes when it is asked again.

    Args:
        requests: requests to the server.
        server: what it is.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
        alternatives: how many each token comes with, as far as the server lists them.
    """

    def __init__(
        self, requests: Requests, server: Server, prompt: str, text: bytes, usage: Usage, alternatives: int = 0
    ) -> None:
        self._requests = requests
        self._server = server
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._alternatives = alternatives
        self._spaced = False  # whether what is listed keeps the space before a word
        self._draft = Draft(0)
        self._wanted = 0  # raw tokens to ask for
        self._given = b""  # behind the text
        self._tokens = 0  # how many these are
        self._seen = 0  # raw tokens of the last answer
        self._changed = False  # whether it was another one than before
        self._full = False  # whether nothing more fits

    async def draft(self, max_tokens: int) -> AsyncGenerator[Token | DraftEnd, None]:
        """At most `max_tokens` tokens, then why there are no more."""
        self._draft, self._wanted = Draft(max_tokens), max_tokens
        while not self._draft.over:
            async with aclosing(resumed(self._answer)) as tokens:
                async for token in tokens:
                    yield token
            if self._full:
                yield DraftEnd("context")
                return
        yield DraftEnd("end") if self._draft.ended else DraftEnd("limit")

    async def _answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The new tokens of one answer, behind those that are known.

        An answer that broke off is asked for once more, and where that breaks off before there is anything new, what
        follows the text.
        """
        if attempt > _AGAIN and self._given:
            self._from_text()
        before, known = self._prompt + sendable(self._text), list(self._draft.ids)
        limit = await self._requests.room(self._server, before, self._wanted)
        if limit <= len(known):
            if not self._text and not known:
                raise await self._requests.too_long(self._server, before)
            self._full = True
            return
        async with aclosing(self._read(before, limit, known, attempt)) as tokens:
            async for token in tokens:
                yield token
        if self._draft.over:
            return
        if self._changed or self._seen < limit:
            self._from_text()
        elif limit < self._wanted:
            self._full = True
        else:
            self._ask_for_more()

    async def _read(self, before: str, limit: int, known: list[int], attempt: int) -> AsyncGenerator[Token, None]:
        """Reads one stream into the draft."""
        self._seen, self._changed = 0, False
        top = min(1 + self._alternatives, self._server.top)
        stream = self._requests.stream(self._server, before, limit, self._usage, attempt=attempt, top=top, whole=False)
        async with stream as events:
            async for event in events:
                position = self._server.position(event)
                pick = position.pick
                self._seen += 1
                if self._seen <= len(known):
                    if pick.id != known[self._seen - 1]:
                        self._changed = True
                        return
                    continue
                for token in self._draft.feed(pick.id, self._told(position, event)):
                    self._given += token.data
                    self._tokens += 1
                    yield token
                if self._draft.over:
                    return

    def _told(self, position: Position, event: Event) -> Token:
        """The server's own token with its alternatives: none where a text that is listed may have lost a space."""
        self._spaced = self._spaced or keeps_spaces(word.text for word in event.top_tokens or ())
        if not self._alternatives or not self._spaced:
            return position.pick.token
        plain = [one for one in position.top if is_plain(readable(one.token.data))]
        return with_alternatives(Position(position.pick, plain), self._alternatives)

    def _ask_for_more(self) -> None:
        """The same text again: a character is not finished, or was several tokens."""
        written, left = len(self._draft.ids), self._draft.left
        if self._tokens:
            self._wanted = written + math.ceil(left * min(written / self._tokens, _EACH)) + _MORE
        else:  # nothing was given out: whatever it writes next is as good
            self._wanted, self._draft = 2 * written + _MORE, Draft(left)

    def _from_text(self) -> None:
        """The text that has grown: the server wrote something else, or stops before it should."""
        if not self._given:
            raise self._server.broken("the server stopped without a token and without a reason")
        self._text += self._given
        self._draft, self._wanted = Draft(self._draft.left), self._draft.left
        self._given, self._tokens = b"", 0
