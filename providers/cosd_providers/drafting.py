"""The loop that streams a draft, common to all engines, and the hidden states of its tokens.

An engine supplies `DraftRequests`. An engine that can stream raw tokens supplies an `IdsStream` instead, which yields
the raw tokens of one request. `IdsDraft` joins these tokens and continues from the draft's own ids, so that the text
does not depend on where a stream ends. TGI accepts text only: its server generates the ids again, and the engine skips
them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

from cosd_providers.contract import DraftEnd, State, Token
from cosd_providers.errors import ConnectError, ContextLengthError, StatusError
from cosd_providers.greedy import Choice, Draft
from cosd_providers.http.retries import resumed
from cosd_providers.usage import Usage

STRETCH = 16
"""The greatest number of a draft's tokens whose states are requested together.

For each request, the server reads all earlier tokens once more.
"""

SEARCH = 2 * (STRETCH.bit_length() - 1)
"""The greatest number of additional requests if the server refuses a text as too long.

The number of tokens per request is halved whenever the server refuses the text.
"""

StatesAfter: TypeAlias = Callable[[Sequence[int], int], Awaitable[Sequence[State]]]
"""A function that accepts a draft's raw ids and a number n, and returns the last n states, up to that after all ids."""


@dataclass(slots=True)
class RequestBill:
    """The tokens of one request, as far as they are known."""

    read: int = 0  # number of prompt tokens that the server reported; 0 if it has not reported any
    written: int = 0  # number of tokens written: as reported, or else the number received
    cached: int = 0  # number of prompt tokens from the server's cache, as reported
    # whether no report can come any more: the answer was read to its end, or the server refuses to report
    final: bool = False


@contextmanager
def billed(usage: Usage, size: Callable[[], tuple[int, bool]]) -> Iterator[RequestBill]:
    """Bill a request, however it ends.

    A server that has begun to answer has read the prompt, and bills it, even if the stream is closed before the server
    reports the number. A request that was sent and then given up may have been read, so it counts as read. A request
    that the server refused does not count.
    `size` returns the number of prompt tokens if the server has not reported it, and whether it is an estimate.
    """
    bill, before, refused = RequestBill(), usage.requests + usage.retries, False
    try:
        yield bill
    except (ConnectError, StatusError):
        refused = not bill.written
        raise
    finally:
        if bill.read:
            usage.bill(bill.read, bill.written, bill.cached)
        elif usage.requests + usage.retries > before and not refused:
            read, estimated = size()
            usage.bill(read, bill.written, estimated=estimated)
            usage.unreported += bill.final and estimated


class DraftRequests(Protocol):
    """The requests of one draft."""

    def answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """Stream the tokens of one answer, which continues all earlier answers; yield nothing if the draft is complete.

        `attempt` is the number of this attempt, from 1; see `http.retries.resumed`.
        """
        ...

    async def after(self) -> Sequence[Token | DraftEnd]:
        """Finish an answer, and return the items after its tokens; the last is a `DraftEnd` if the draft is over."""
        ...


async def streamed(begin: Callable[[], Awaitable[DraftRequests]]) -> AsyncGenerator[Token | DraftEnd, None]:
    """Stream the draft that `begin` prepares, in as many requests as necessary; resume requests that break off."""
    draft = await begin()
    item: Token | DraftEnd | None = None
    while not isinstance(item, DraftEnd):
        async with aclosing(resumed(draft.answer)) as tokens:
            async for token in tokens:
                yield token
        for item in await draft.after():
            yield item


Next = Choice | Callable[[], Awaitable[Choice]] | Literal["full"]
"""One step of a stream: the server's next raw token. The last step may instead be a function that finds the token with
a separate request, or `"full"` if the context is full."""


class IdsStream(Protocol):
    """One request for a draft."""

    def __call__(self, ids: Sequence[Any], left: int, attempt: int) -> AsyncGenerator[Next, None]:
        """Stream about `left` raw tokens after `ids`.

        Args:
            ids: the prompt and the response, in the engine's own form, followed by the ids of the draft so far.
            left: the number of tokens that the draft still needs.
            attempt: number of this attempt, from 1; see `http.retries.resumed`.

        Raises:
            ContextLengthError: the context has no room after `ids`. If the server accepts text only, the stream yields
                `"full"` instead.
        """
        ...


class IdsDraft:
    """A draft of at most `max_tokens` tokens that continues from its own ids.

    Args:
        stream: the engine's requests.
        start: the prompt and the response so far, in the engine's own form.
        max_tokens: the greatest number of whole-character tokens to yield.
        alone: whether `start` is only the prompt. If so, a `start` that is too long is an error; otherwise the draft
            just ends.
        repeats: whether the server accepts text only. If so, each stream generates the ids of the draft again, and the
            engine skips the repeated ids; the draft closes its stream as soon as it is complete, and has no
            continuation.
        raw: whether the draft follows a context by ids. If so, its tokens are yielded unchanged, with their ids.
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
        self._last: Next | None = None  # last step of the latest stream, if it was not a token

    async def answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """Stream the tokens of one request; see `DraftRequests`.

        Raises:
            ContextLengthError: the prompt alone is too long.
        """
        draft, self._last = self.draft, None
        if draft.over:
            return  # the previous attempt had already received all tokens
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
        """Request the last token if it needs a separate request, and return it with the end; see `DraftRequests`."""
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


async def with_states(
    items: AsyncGenerator[Token | DraftEnd, None], draft: Draft, states: StatesAfter
) -> AsyncGenerator[Token | DraftEnd, None]:
    """Yield the items of a draft, each token with its state. The server continues to write while states are requested.

    `draft` has the ids of all tokens that have arrived so far; `states` requests states.

    Raises:
        ContextLengthError: the text before a token is too long for one request. All earlier tokens have been yielded.
    """
    held: list[Token] = []
    given = 0
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Token):
                held.append(item)
                if len(held) < STRETCH:
                    continue
            size = len(held)
            while held:
                starts = draft.starts[given : given + min(size, len(held))]
                try:
                    found = await states(draft.ids[: starts[-1]], starts[-1] - starts[0] + 1)
                except ContextLengthError:
                    if len(starts) == 1:
                        raise
                    size = len(starts) // 2  # the first half of the tokens may fit
                    continue
                for token, start in zip(held, starts, strict=False):
                    yield replace(token, state=found[start - starts[0]])
                given, held = given + len(starts), held[len(starts) :]
            if isinstance(item, DraftEnd):
                yield item
