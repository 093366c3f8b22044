"""The drafts of an answer: the draft model continues the path whenever the pace lets it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from cosd_api.decoding.answer import AnswerPath
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.commands import StartDraft
from cosd_api.decoding.pace import PATIENCE
from cosd_api.decoding.pacing import Pacing
from cosd_api.paths.text_only import resumed
from cosd_providers.contract import DraftEnd, Ready, Token

FIRST_SECONDS = 0.001
"""Number of seconds after which a new draft is assumed to use the connection that was opened for it in advance."""

_LONGEST_WAIT = 0.1  # seconds to wait at most until a cancelled draft has left its server


class Drafts:
    """The requests in which the draft model writes the path.

    Args:
        answer: the answer.
        calls: access to the models.
        pacing: decides how far the draft runs ahead.
        start: starts a background task.

    Attributes:
        writing: whether a draft is in progress.
        end: the end of a draft after which the path cannot continue.
        error: the error of the last draft; raised only when the answer has to wait for the draft.
        off_path: number of drafts that had to continue a cut text. It depends on timing.
    """

    def __init__(self, answer: AnswerPath, calls: Calls, pacing: Pacing, start: Callable[..., None]) -> None:
        self.writing = False
        self.end: DraftEnd | None = None
        self.error: Exception | None = None
        self.off_path = 0
        self._answer, self._calls, self._pacing, self._start = answer, calls, pacing, start
        settings = pacing.settings
        self._also: Any = {"alternatives": settings.listed, "states": settings.states}
        self._continuation: Any = None
        draft = answer.job.turns[0].provider
        self._ready = draft if isinstance(draft, Ready) else None
        self._scope, self._done = anyio.CancelScope(), anyio.Event()
        self._current = 0  # number of the draft in progress; 0 if it was given up
        self._leaving = False  # whether a draft that was given up still writes its last token
        self._free_at = 0.0  # time at which a cancelled draft has left its server
        self._token_at, self._token_seconds = 0.0, 0.0  # time of the last token, and since the one before it
        self._room: int = 0  # number of tokens that the draft in progress may still write
        self._begun = 0  # number of tokens in the path at the last replacement
        self._from = 0  # number of tokens in the path when the draft began
        self._again = b""  # text that a text-only draft has to repeat before it writes new text
        self._stuck = -1  # number of tokens in the path when the draft failed to write the same text again

    def leave(self) -> None:
        """Give up the draft in progress, if any. Its stream closes in the background.

        The next draft waits until the server has left the stream, because it would read the text again otherwise. A
        stream that has one token left ends sooner than a server notices that it was cancelled, unless it hangs.
        """
        if self.writing:
            settings = self._pacing.settings
            leases = settings.leases
            self._leaving = leases and self._token_at > 0 and self._room == 1
            self._free_at = anyio.current_time() + self._token_seconds if leases and not self._leaving else 0.0
            self._current = 0
            if self._leaving:
                self._scope.deadline = anyio.current_time() + PATIENCE
            else:
                self._scope.cancel()
            self._over()

    def stop(self, error: Exception) -> None:
        """Stop after the draft has failed, until `restart`."""
        self.leave()
        self.error = error

    def restart(self) -> None:
        """Continue after a replacement, which is now part of the path."""
        self.leave()
        self.error = self.end = self._continuation = None
        self._begun, self._stuck = len(self._answer.tokens), -1

    async def draft(self) -> None:
        """Continue the path whenever more tokens may be drafted."""
        answer, checked = self._answer, -1
        while True:
            self._room = 0 if self.error is not None else self._pacing.room()
            if self._room <= 0 or self._leaving:
                await answer.changed()
                continue
            if (wait := self._free_at - anyio.current_time()) > 0:
                await anyio.sleep(wait)
                continue  # the path may have changed
            if checked != answer.changes:  # what the judges find may make this draft useless
                await answer.judges_caught_up(self._token_seconds)
                checked = answer.changes
                continue
            command = self._next()
            self._current = answer.draft = command.draft
            self.writing, self._done, self._scope = True, anyio.Event(), anyio.CancelScope()
            self._token_at = 0.0
            self._start(self._write, command, self._scope)
            if self._ready is not None:
                self._start(self._keep_ready, self._ready)
            await self._done.wait()

    async def _write(self, command: StartDraft, scope: anyio.CancelScope) -> None:
        take = partial(self._take, command.draft)
        with scope:
            try:
                await self._calls.generate(0, command, take, counts=lambda: not self._answer.ended)
            except Exception as error:  # noqa: BLE001 - raised only when the answer waits for the draft
                self._failed(command.draft, error)
        if self._leaving and scope is self._scope:
            self._leaving = False
            self._answer.notify()
        self._ended(command.draft)

    def _measure(self) -> None:
        """Note the time that the draft takes for a token."""
        now = anyio.current_time()
        if self._token_at:
            self._token_seconds = min(_LONGEST_WAIT, now - self._token_at)
        self._token_at = now

    def _failed(self, number: int, error: Exception) -> None:
        if number == self._current:
            self.error = placed(error, self._answer.job.turns[0].provider)

    def _ended(self, number: int) -> None:
        if number == self._current:
            self._over()

    def _over(self) -> None:
        """Let the next draft begin."""
        self.writing = False
        self._done.set()
        self._answer.notify()

    async def _keep_ready(self, draft: Ready) -> None:
        """Let the provider open a connection for the next draft."""
        await anyio.sleep(FIRST_SECONDS)
        with suppress(Exception):  # a failure only costs time
            if await draft.keep_ready() is False:
                self._ready = None

    def _next(self) -> StartDraft:
        """The next draft. If it continues from text, it writes the text after the last safe cut again."""
        answer, text, number, room = self._answer, bytes(self._answer.text), next(self._answer.numbers), self._room
        self._again, self._from = b"", len(answer.tokens)
        if answer.by_ids:
            return StartDraft(number, text, room, None, (), ids=answer.ids(len(answer.tokens)), **self._also)
        if not answer.lookahead:  # tokens are judged, so the draft continues wherever they end
            own = tuple(token.data for token in answer.tokens[self._begun :])
            return StartDraft(number, text, room, self._continuation, own, **self._also)
        at = resumed(answer, self._begun) if self._stuck != len(answer.tokens) else None
        if at is None:
            at = len(text)
            self.off_path += 1
        self._again = text[at:]
        self._room += len(answer.tokens) - bisect_right(answer.ends, at)
        return StartDraft(number, text[:at], self._room, None, (), **self._also)

    def _rest_of(self, token: Token) -> Token | None:
        """The new part of a token while the draft writes the end of the path again; None if nothing is new."""
        before, data = self._again, token.data
        if not before:
            return token
        if not (data.startswith(before) or before.startswith(data)):
            self._stuck = len(self._answer.tokens)
            return None
        self._again = before[len(data) :]
        return replace(token, data=data[len(before) :]) if len(data) > len(before) else None

    def _take(self, number: int, item: Token | DraftEnd) -> bool:
        """Add an item of a draft to the path. Return True if no more items are needed."""
        answer = self._answer
        if number != self._current:
            return not self._leaving
        foreign = False
        if isinstance(item, DraftEnd):
            self._continuation = item.continuation
            if item.reason in ("context", "filter"):
                self.end, answer.over = item, True
            same = bool(self._again) or len(answer.tokens) == self._from  # nothing new was written
            self._stuck = len(answer.tokens) if same else -1
        else:
            self._room -= 1
            self._measure()
            if item.end and self._again:
                self._stuck = len(answer.tokens)
            elif not answer.ended and (token := self._rest_of(item)) is not None:
                token = answer.known_end(token)
                foreign = token.end and not item.end  # this server does not know that the answer is over
                answer.append(token, answer.mark())
        if len(answer.tokens) >= answer.bound + answer.lookahead and not answer.ended:
            answer.over = True
        answer.notify()
        enough = answer.over or (self._pacing.reaches() and not answer.awaited)
        return foreign or (enough and self._room > 0) or self._stuck == len(answer.tokens)
