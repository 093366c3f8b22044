"""The loops of a draft, which hold for any engine that can stream raw tokens.

Engines supply `IdsStream`: the raw tokens of one request. `from_ids` joins them, retries what breaks off, and continues
from the ids of the draft itself: its text does not depend on where a stream ended. TGI, which takes text only, has the
server generate these ids again and skips them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol

from cosd_providers.contract import DraftEnd, Token
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Choice, Draft
from cosd_providers.hidden_states import StatesAfter, with_states
from cosd_providers.http.retries import resumed

__all__ = ["IdsStream", "Next", "from_ids"]

Next = Choice | Callable[[], Awaitable[Choice]] | Literal["full"]
"""One step of a stream: the server's next raw token; or, as the last step, a function that finds it by a request of its
own; or that the context is full."""


class IdsStream(Protocol):
    """One request for a draft."""

    def __call__(self, ids: Sequence[Any], left: int, attempt: int) -> AsyncGenerator[Next, None]:
        """Stream about `left` raw tokens after `ids`.

        Args:
            ids: the prompt, as the engine sends it, and the ids of the draft so far.
            left: whole-character tokens that are still wanted.
            attempt: number of this attempt, from 1; see `http.retries.resumed`.

        Raises:
            ContextLengthError: nothing fits behind `ids`. A server that takes text only says "full" instead.
        """
        ...


def from_ids(
    stream: IdsStream,
    start: Sequence[Any],
    max_tokens: int,
    *,
    alone: bool,
    repeats: bool = False,
    states: StatesAfter | None = None,
) -> AsyncGenerator[Token | DraftEnd, None]:
    """Draft at most `max_tokens` tokens, then say why there are no more.

    Args:
        stream: the engine's requests.
        start: the prompt and the response so far, as the engine sends them.
        max_tokens: whole-character tokens to give at most.
        alone: `start` is the prompt alone, and it is an error if it is too long.
        repeats: the server takes text only, and each stream generates the ids of the draft again and skips them. It is
            left once the draft is full, and the draft has no continuation.
        states: asks for the hidden states of the draft's tokens, if they are wanted.

    Raises:
        ContextLengthError: the prompt alone is too long.
    """
    draft = _IdsDraft(stream, start, max_tokens, alone, repeats)
    return draft.items() if states is None else with_states(draft.items(), draft.draft, states)


class _IdsDraft:
    def __init__(self, stream: IdsStream, start: Sequence[Any], max_tokens: int, alone: bool, repeats: bool) -> None:
        self._stream = stream
        self._start = start
        self._alone = alone
        self._repeats = repeats
        self.draft = Draft(max_tokens)
        self._last: Next | None = None  # the last step of the last stream, if it was not a token

    async def items(self) -> AsyncGenerator[Token | DraftEnd, None]:
        draft = self.draft
        while not draft.over:
            async with aclosing(resumed(self._answer)) as tokens:
                async for token in tokens:
                    yield token
            if draft.over:
                break
            if self._last == "full":
                yield DraftEnd("context")
                return
            if callable(self._last):
                choice = await self._last()
                for token in draft.feed(choice.id, choice.token):
                    yield token
        if draft.ended or self._repeats:
            yield DraftEnd("end" if draft.ended else "limit")
        else:
            yield DraftEnd("limit", (*self._start, *draft.ids))

    async def _answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The tokens of one request, which continues from all that came before."""
        draft, self._last = self.draft, None
        if draft.over:
            return  # only the end of the stream was lost
        try:
            async with aclosing(self._stream([*self._start, *draft.ids], draft.left, attempt)) as steps:
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
