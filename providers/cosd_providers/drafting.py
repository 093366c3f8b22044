"""The loop of a draft, common to all engines.

Engines supply `DraftRequests`. Engines that can stream raw tokens supply `IdsStream`, the raw tokens of one request:
`IdsDraft` joins them and continues from the ids of the draft itself, so that its text does not depend on the ends of
streams. TGI takes text only, so its server generates these ids again and the engine skips them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Choice, Draft
from cosd_providers.http.retries import resumed

__all__ = ["DraftRequests", "IdsDraft", "IdsStream", "Next", "streamed"]


class DraftRequests(Protocol):
    """The requests of one draft."""

    def answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """Stream the tokens of one answer, which continues all earlier ones; none if the draft is over.

        Args:
            attempt: number of this attempt, from 1; see `http.retries.resumed`.
        """
        ...

    async def after(self) -> Sequence[Token | DraftEnd]:
        """Finish an answer: return the items after it, up to the end of the draft unless another answer is needed."""
        ...


async def streamed(begin: Callable[[], Awaitable[DraftRequests]]) -> AsyncGenerator[Token | DraftEnd, None]:
    """A draft in as many requests as it needs; broken requests are sent again.

    Args:
        begin: makes the draft, with everything that its first request needs.
    """
    draft = await begin()
    item: Token | DraftEnd | None = None
    while not isinstance(item, DraftEnd):
        async with aclosing(resumed(draft.answer)) as tokens:
            async for token in tokens:
                yield token
        for item in await draft.after():
            yield item


Next = Choice | Callable[[], Awaitable[Choice]] | Literal["full"]
"""One step of a stream: the server's next raw token; or, as the last step, a function that finds it by a request of its
own; or `"full"`, if the context is full."""


class IdsStream(Protocol):
    """One request for a draft."""

    def __call__(self, ids: Sequence[Any], left: int, attempt: int) -> AsyncGenerator[Next, None]:
        """Stream about `left` raw tokens after `ids`.

        Args:
            ids: the prompt, in the engine's own form, and the ids of the draft so far.
            left: tokens that are still wanted.
            attempt: number of this attempt, from 1; see `http.retries.resumed`.

        Raises:
            ContextLengthError: nothing fits after `ids`. A server that takes text only yields "full" instead.
        """
        ...


class IdsDraft:
    """A draft of at most `max_tokens` tokens that continues from its own ids.

    Args:
        stream: the engine's requests.
        start: the prompt and the response so far, in the engine's own form.
        max_tokens: whole-character tokens to give at most.
        alone: `start` is the prompt alone; if it is too long, that is an error.
        repeats: the server takes text only; each stream generates the ids of the draft again, and the engine skips
            them. A full draft closes its stream, and has no continuation.
        raw: it follows a context by ids: its tokens are given out unchanged, with their ids.

    Attributes:
        start: as given.
        draft: the tokens so far.
    """

    def __init__(
        self,
        stream: IdsStream,
        start: Sequence[Any],
        max_tokens: int,
        *,
        alone: bool,
        repeats: bool = False,
        raw: bool = False,
    ) -> None:
        self._stream = stream
        self.start = start
        self._alone = alone
        self._repeats = repeats
        self._raw = raw
        self.draft = Draft(max_tokens, raw=raw)
        self._last: Next | None = None  # the last step of the last stream, if it was not a token

    async def answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The tokens of one request; see `DraftRequests`.

        Raises:
            ContextLengthError: the prompt alone is too long.
        """
        draft, self._last = self.draft, None
        if draft.over:
            return  # only the end of the stream was lost
        try:
            async with aclosing(self._stream([*self.start, *draft.ids], draft.left, attempt)) as steps:
                async for step in steps:
                    if not isinstance(step, Choice):
                        self._last = step
                        return
                    for token in draft.feed(step.id, step.token):
                        yield token
                    if draft.over and self._repeats:
                        return
        except ContextLengthError:
            if self._repeats or (self._alone and not draft.ids):
                raise
            self._last = "full"

    async def after(self) -> Sequence[Token | DraftEnd]:
        """A token that needed a request of its own, and the end; see `DraftRequests`."""
        draft, found = self.draft, list[Token | DraftEnd]()
        if not draft.over and self._last == "full":
            return [DraftEnd("context")]
        if not draft.over and callable(self._last):
            choice = await self._last()
            found += draft.feed(choice.id, choice.token)
        if draft.over:
            ids = None if draft.ended or self._repeats or self._raw else (*self.start, *draft.ids)
            found.append(DraftEnd("end" if draft.ended else "limit", ids))
        return found
