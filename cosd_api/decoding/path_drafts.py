"""The drafts of an answer across tokenizers, which implement line 1 of `across`."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import replace
from functools import partial

import anyio

from cosd_api.decoding.answer_path import LOOKAHEAD, AnswerPath
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.commands import StartDraft
from cosd_api.decoding.driver import FIRST_SECONDS
from cosd_api.decoding.tasks import AnswerTasks
from cosd_api.paths import look, word_around
from cosd_api.text_paths import resumed
from cosd_providers.contract import DraftEnd, Ready, Token


class PathDrafts:
    """The requests in which the draft model writes its path.

    Args:
        path: the path.
        calls: access to the models.
        tasks: the tasks of the answer.

    Attributes:
        writing: whether a draft is in progress.
        end: the end of a draft after which the path cannot continue.
        error: the error of the last draft; raised only when the answer has to wait for the draft.
    """

    def __init__(self, path: AnswerPath, calls: Calls, tasks: AnswerTasks) -> None:
        self.writing = False
        self.end: DraftEnd | None = None
        self.error: Exception | None = None
        self._path = path
        self._calls = calls
        self._tasks = tasks
        draft = path.job.turns[0].provider
        self._ready = draft if isinstance(draft, Ready) else None
        self._scope = anyio.CancelScope()
        self._left = 0  # number of the last draft that a replacement ended
        self._begun = 0  # number of tokens in the path at the last replacement
        self._again = b""  # text that a text-only draft has to repeat before it writes new text
        self._stuck = -1  # number of tokens in the path when the draft failed to write the same text again

    def leave(self) -> None:
        """Cancel the draft in progress because of a replacement."""
        self._scope.cancel()
        self._left = self._path.draft

    def restart(self) -> None:
        """Continue after a replacement, which is now part of the path."""
        self.error = self.end = None
        self._begun, self._stuck = len(self._path.tokens), -1

    async def write(self) -> None:
        """Continue the path from the draft's own ids whenever more tokens may be drafted (line 1)."""
        path = self._path
        while True:
            room = self._room()
            if room <= 0:
                await path.changed()
                continue
            path.draft = next(path.numbers)
            command = self._next(room)
            if self._ready is not None:
                self._tasks.start(self._keep_ready, self._ready)
            with anyio.CancelScope() as self._scope:
                self.writing = True
                try:
                    await self._calls.generate(
                        0, command, partial(self._take, path.draft), counts=lambda: not path.ended
                    )
                except Exception as error:  # noqa: BLE001 - raised only when the answer waits for the draft
                    if command.draft > self._left:
                        self.error = placed(error, path.job.turns[0].provider)
            self.writing = False
            path.tell()

    async def _keep_ready(self, draft: Ready) -> None:
        """Let the provider open a connection for the next draft, because cancelling a stream closes its connection."""
        await anyio.sleep(FIRST_SECONDS)
        with suppress(Exception):  # a failure only costs time
            if await draft.keep_ready() is False:
                self._ready = None

    def _next(self, room: int) -> StartDraft:
        """The next draft, of `room` tokens. If it continues from text, it rewrites the text after the last safe cut."""
        path, text = self._path, bytes(self._path.text)
        self._again = b""
        if path.encoder is not None:
            return StartDraft(path.draft, text, room, None, (), ids=tuple(token.id or 0 for token in path.tokens))
        at = resumed(path, self._begun) if self._stuck != len(path.tokens) else None
        if at is None:
            at = len(text)
            path.counts.off_path = (path.counts.off_path or 0) + 1
        self._again = text[at:]
        return StartDraft(path.draft, text[:at], room + len(path.tokens) - bisect_right(path.ends, at), None, ())

    def _rest_of(self, token: Token) -> Token | None:
        """The new part of a token while the draft writes the end of the path again; None if nothing is new."""
        before, data = self._again, token.data
        if not before:
            return token
        if not (data.startswith(before) or before.startswith(data)):
            self._stuck = len(self._path.tokens)
            return None
        self._again = before[len(data) :]
        return replace(token, data=data[len(before) :]) if len(data) > len(before) else None

    def _room(self) -> int:
        """The number of tokens that may now be requested from the draft."""
        path, pace, written = self._path, self._path.job.pace, len(self._path.tokens)
        starving = path.starving
        if path.ended or path.over or self.error is not None or (self._reaches() and not starving):
            return 0
        most = path.bound + LOOKAHEAD - written
        bound = pace.draft_length or pace.max_ahead
        if bound is not None:
            ahead = written - path.judged
            most = min(most, bound if starving else bound - ahead)
        return most

    def _reaches(self) -> bool:
        """Test whether the draft has most likely written far enough beyond the answer's end to encode the last word."""
        path, bound = self._path, self._path.bound
        if len(path.tokens) <= bound or path.encoder is None:
            return False
        text = path.written
        _, end = word_around(text, path.offset(bound))
        return end < len(text) and look(text, end, ended=False) is not None

    def _take(self, number: int, item: Token | DraftEnd) -> bool:
        """Add an item of a draft to the path. Return True if no more items are needed."""
        path = self._path
        if number <= self._left:
            return True
        if isinstance(item, DraftEnd):
            if item.reason in ("context", "filter"):
                self.end, path.over = item, True
            self._stuck = len(path.tokens) if self._again else -1
        elif item.end and self._again:
            self._stuck = len(path.tokens)
        elif (token := self._rest_of(item)) is not None:
            path.append(path.known_end(token), path.mark())
            path.find_stop(len(token.data))
        if len(path.tokens) >= path.bound + LOOKAHEAD:
            path.over = True
        path.tell()
        enough = (path.over and path.stop_end is not None) or (self._reaches() and not path.starving)
        return enough or self._stuck == len(path.tokens)
