"""Failover: after the draft has failed, an assistant writes on alone, until the draft answers again.

Up to the seam the text is Algorithm 1's. After it, the text is the assistant's own greedy continuation. When the draft
has returned, the fusion continues as after a replacement by that assistant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import anyio

from cosd_api.decoding.answer import AnswerPath
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.characters import Characters
from cosd_api.decoding.commands import StartDraft
from cosd_api.decoding.said import Ids
from cosd_api.paths.cuts import is_safe_cut
from cosd_api.paths.encoding import Encoder
from cosd_providers.contract import DraftEnd, Token
from cosd_providers.errors import ProviderError, ResponseError
from cosd_providers.text import sendable

RETURN_SECONDS = 2.0
"""Number of seconds between two looks at whether the draft answers again."""


class Failover:
    """The continuation of an answer by one assistant alone.

    Args:
        answer: the answer.
        calls: access to the models.
        encoders: the encoder of each assistant that reads its own ids, by the index of the model.
        start: starts a background task.
        tokenwise: whether the fusion can continue after any token.

    Attributes:
        active: whether an assistant writes alone.
        returned: whether the draft answers again and the path has been made ready for it.
        end: the end of a request after which the assistant cannot continue.
        error: the assistant's error.
    """

    def __init__(
        self,
        answer: AnswerPath,
        calls: Calls,
        encoders: Mapping[int, Encoder],
        start: Callable[..., None],
        *,
        tokenwise: bool,
    ) -> None:
        self.active = self.returned = False
        self.end: DraftEnd | None = None
        self.error: Exception | None = None
        self._answer, self._calls, self._encoders, self._start = answer, calls, encoders, start
        self._tokenwise = tokenwise
        self._is_back, self._may_return = False, True

    def begin(self, model: int, reason: str, *, looks_at_once: bool = False) -> None:
        """Let an assistant continue the path.

        Args:
            model: index of the assistant.
            reason: the reason, which is recorded with each token.
            looks_at_once: whether the draft may be back already, because it failed in an earlier answer.
        """
        self.active, self.returned, self._is_back, self.end, self.error = True, False, False, None, None
        self._start(self._run, model, reason, 0.0 if looks_at_once else RETURN_SECONDS)

    def resort_to_draft(self, error: Exception) -> None:
        """Let the draft continue if it answers again, because no assistant is left; otherwise, `error` remains."""
        self.error = None
        self._start(self._resort, error)

    def leave(self) -> None:
        """Let the draft continue."""
        self.active = self.returned = False

    async def _resort(self, error: Exception) -> None:
        if await self._answer.job.drafts.draft_is_back():
            await self._make_ready(len(self._answer.tokens))
        self.error = None if self.returned else error
        self._answer.notify()

    async def _run(self, model: int, reason: str, wait: float) -> None:
        """Write until the answer ends, the assistant fails, or the draft has returned."""
        answer = self._answer
        looking = anyio.CancelScope()
        self._start(self._look, looking, wait)
        try:
            while not (self.returned or self.end or answer.is_end(len(answer.tokens))):
                await self._write(model, reason)
        except Exception as error:  # noqa: BLE001 - raised only if no other assistant can continue
            self.error = placed(error, answer.job.turns[model].provider)
        finally:
            looking.cancel()
        answer.notify()

    async def _write(self, model: int, reason: str) -> None:
        """Send one request, in which the assistant continues the exact text."""
        answer, characters = self._answer, Characters()
        count, text = len(answer.tokens), bytes(answer.text)
        shares = answer.job.routes.assistants[model - 1] == "ids"
        ids = answer.ids(count) if shares else await self._encoded(self._encoders.get(model), text)
        joins = ids is not None and not shares
        due = False

        def append(token: Token) -> None:
            if not answer.is_end(len(answer.tokens)):
                mark = answer.mark(model - 1)
                mark.failover = reason
                answer.append(answer.known_end(token) if shares else replace(token, id=None), mark)
                answer.notify()

        def take(item: Token | DraftEnd) -> bool:
            nonlocal due
            if isinstance(item, DraftEnd):
                self.end = item if item.reason in ("context", "filter") else None
                return True
            for token in characters.feed(item) if joins else [item]:
                append(token)
            due = self._is_back and self._may_return and self._can_return()
            return due or answer.is_end(len(answer.tokens))

        command = StartDraft(next(answer.asks), text, answer.bound - count, None, (), ids=ids)
        await self._calls.generate(model, command, take, question=True)
        for token in characters.flush():
            append(token)
        if due and not answer.is_end(len(answer.tokens)):
            await self._make_ready(len(answer.tokens) - (not self._tokenwise))
        if len(answer.tokens) == count and not (self.returned or self.end):
            raise ResponseError(
                "the server wrote nothing, and gave no reason", endpoint=answer.job.turns[model].provider.name
            )

    async def _encoded(self, encoder: Encoder | None, text: bytes) -> Ids | None:
        """A model's own encoding of the text; None if it takes text."""
        if encoder is None or sendable(text).encode() != text:
            return None
        if not text:
            return ()  # the model itself chooses how its path begins, after white space of its template
        found = await encoder.upto(text, len(text))
        return None if found is None else found.ids

    def _can_return(self) -> bool:
        """Test whether the draft can continue before the last token, wherever other models cut the text."""
        answer = self._answer
        if self._tokenwise:
            return True
        return len(answer.tokens) > 1 and is_safe_cut(bytes(answer.text), answer.ends[-2])

    async def _make_ready(self, count: int) -> None:
        """Let the draft continue after the first `count` tokens, with its own ids of their text.

        If it cannot encode the text, the assistant writes on, and the draft does not return in this answer.
        """
        answer, ids = self._answer, None
        if answer.encoder is not None:
            with suppress(ProviderError):  # the draft has failed again
                ids = await self._encoded(answer.encoder, bytes(answer.text[: answer.offset(count)]))
            if ids is None:
                self._may_return = False
                return
        answer.cut_back(count)
        if ids is not None:
            answer.encode_again(ids)
        self.returned = True

    async def _look(self, scope: anyio.CancelScope, wait: float) -> None:
        """Ask the draft's server, from time to time, whether it serves the same model again."""
        with scope:
            while not self._is_back:
                await anyio.sleep(wait)
                self._is_back = await self._answer.job.drafts.draft_is_back()
                wait = RETURN_SECONDS
