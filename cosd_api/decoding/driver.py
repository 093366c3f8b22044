"""The loop that feeds a decoder: runs its commands against the endpoints, and brings back events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.commands import (
    Ask,
    CancelAsk,
    CancelDraft,
    CloseWatch,
    Command,
    Decoder,
    Emit,
    Fail,
    Finish,
    Heard,
    Report,
    StartDraft,
    Wait,
    Watch,
)
from cosd_api.decoding.run import AnswerJob
from cosd_providers.contract import DraftEnd, Ready, Token
from cosd_providers.errors import ResponseError

_log = logging.getLogger("cosd_api")

GRACE_SECONDS = 2.0
"""Time for a draft that has written its last token to end (and report what it billed)."""

LOOK_SECONDS = 0.01
"""After this time of a question a timer shows how late the event loop is."""

FIRST_SECONDS = 0.001
"""After this time a draft that was started has taken the connection that was ready."""


class Driver:
    """One fusion in progress, by a decoder: a `Run`.

    Args:
        decoder: decides what to do.
        job: the models, the limits and the record.
    """

    def __init__(self, decoder: Decoder, job: AnswerJob) -> None:
        self.decoder = decoder
        self.calls = Calls(job.turns, job.budget, job.timeline, room=job.room)
        self._job = job
        draft = job.turns[0].provider
        self._ready = draft if isinstance(draft, Ready) else None
        self._error: Exception | None = None
        self._idle = anyio.Event()
        self._scopes: dict[tuple[str, int], anyio.CancelScope] = {}
        self._may_pause = self._unknown = False
        self._group: TaskGroup

    @property
    def finished(self) -> Finish | None:
        """The end of the answer, once it is complete."""
        return self.decoder.finished

    def stop_here(self, finish: Finish) -> None:
        """End the answer with what was emitted, unless it is complete."""
        self.decoder.stop_here(finish)

    def report(self) -> Report:
        """The answer so far."""
        return self.decoder.report()

    async def run(self) -> None:
        """Run to the end of the answer.

        Raises:
            ProviderError: an endpoint failed, and the answer cannot continue without it; everything else is cancelled.
        """
        # A draft that continues from its text may read this as other tokens than it wrote: the answer would depend on
        # where requests ended, and so on time.
        self._may_pause = (await self._job.turns[0].provider.describe()).capabilities.token_ids
        lateness = self._job.lateness
        lateness.answers += 1
        try:
            self._unknown = not lateness.in_time(asyncio.get_running_loop().time())
            self._judge_lateness(self._unknown)
            async with anyio.create_task_group() as self._group:
                self._step(self.decoder.start)
        finally:
            lateness.answers -= 1
        if self._error is not None:
            raise self._error
        if self.decoder.finished is None:
            raise ResponseError("a provider gave up without an answer or an error")

    def _step(self, happen: Callable[..., Sequence[Command]], *what: Any) -> None:
        """Report an event to the decoder, and do what it commands."""
        self.decoder.now = self._job.timeline.now()
        try:
            self._do(happen(*what))
        except Exception as error:  # noqa: BLE001 - a verifier's own, say: run() raises it
            self._fail(error)
        if self._unknown or self._job.lateness.late or self.decoder.late:
            self._judge_lateness(self._unknown and any(kind == "ask" for kind, _ in self._scopes))

    def _judge_lateness(self, unknown: bool) -> None:
        """Tell the decoder whether it hears late."""
        self.decoder.late = self._may_pause and (unknown or self._job.lateness.late)

    def _look(self, due: float) -> None:
        """See how late the event loop is."""
        self._job.lateness.woken(asyncio.get_running_loop().time() - due)

    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Emit():
                    self._job.emit(command.tokens)
                case StartDraft() | Ask() | Watch():
                    self._start(command)
                case Wait():
                    self._group.start_soon(self._wait, command.wait)
                case Heard():
                    self.calls.heard(command.watch, command.assistant)
                case CancelDraft() | CancelAsk() | CloseWatch():
                    self._cancel(command)
                case Fail():
                    self._fail(command.error)
                case Finish():
                    if not self._scopes:
                        self._idle.set()
                    self._group.start_soon(self._finish)

    def _start(self, command: StartDraft | Ask | Watch) -> None:
        match command:
            case StartDraft():
                self._group.start_soon(self._run_draft, command, self._scope("draft", command.draft))
                if self._ready is not None:
                    self._group.start_soon(self._keep_ready, self._ready)
            case Ask():
                self._group.start_soon(self._run_ask, command, self._scope("ask", command.ask))
            case Watch():
                self._group.start_soon(self._run_watch, command, self._scope("watch", command.watch))

    async def _wait(self, number: int) -> None:
        await anyio.sleep(self._job.batch_wait)
        self._step(self.decoder.waited, number)

    async def _keep_ready(self, draft: Ready) -> None:
        """Have a connection made for the next draft: a stream that is left takes its own with it."""
        await anyio.sleep(FIRST_SECONDS)
        with suppress(Exception):  # it only saves time
            if await draft.keep_ready() is False:
                self._ready = None

    async def _finish(self) -> None:
        # A draft that is still there has written its last token: its bill follows at once.
        with anyio.move_on_after(GRACE_SECONDS):
            await self._idle.wait()
        self._group.cancel_scope.cancel()

    async def _run_draft(self, command: StartDraft, scope: anyio.CancelScope) -> None:
        def take(item: Token | DraftEnd) -> bool:
            self._step(
                self.decoder.drafted if isinstance(item, Token) else self.decoder.draft_ended, command.draft, item
            )
            return False

        with scope:
            try:
                await self.calls.generate(0, command, take, counts=lambda: self.decoder.finished is None)
            except Exception as error:  # noqa: BLE001 - the decoder decides whether it matters
                _log.debug("a draft failed: %s", type(error).__name__)
                self._step(self.decoder.draft_failed, command.draft, placed(error, self._job.turns[0].provider))
            finally:
                self._closed("draft", command.draft)

    async def _run_watch(self, command: Watch, scope: anyio.CancelScope) -> None:
        def take(item: Token | DraftEnd) -> bool:
            self._step(
                self.decoder.watched if isinstance(item, Token) else self.decoder.watch_ended, command.watch, item
            )
            return False

        with scope:
            try:
                await self.calls.watch(command, take, counts=lambda: self.decoder.finished is None)
            except Exception as error:  # noqa: BLE001 - a single question finds out whether it matters
                _log.debug("a watch failed: %s", type(error).__name__)
                who = self._job.turns[1 + command.assistant].provider
                self._step(self.decoder.watch_failed, command.watch, placed(error, who))
            finally:
                self._closed("watch", command.watch)

    async def _run_ask(self, command: Ask, scope: anyio.CancelScope) -> None:
        began = self._job.timeline.now()
        loop = asyncio.get_running_loop()
        loop.call_later(LOOK_SECONDS, self._look, loop.time() + LOOK_SECONDS)
        with scope:
            who = 1 + command.assistant
            try:
                proposals = await self.calls.propose(
                    who,
                    command.text,
                    command.questions,
                    number=command.ask,
                    alternatives=command.alternatives,
                    paths=command.paths,
                )
            except Exception as error:  # noqa: BLE001 - the decoder decides whether it matters
                _log.debug("a question failed: %s", type(error).__name__)
                self._step(self.decoder.ask_failed, command.ask, placed(error, self._job.turns[who].provider))
            else:
                self._unknown = False
                self._job.lateness.heard(self._job.timeline.now() - began, loop.time())
                self._step(self.decoder.answered, command.ask, proposals)
            finally:
                self._closed("ask", command.ask)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._group.cancel_scope.cancel()

    def _scope(self, kind: str, number: int) -> anyio.CancelScope:
        scope = self._scopes[kind, number] = anyio.CancelScope()
        return scope

    def _closed(self, kind: str, number: int) -> None:
        self._scopes.pop((kind, number), None)
        if not self._scopes and self.decoder.finished:
            self._idle.set()

    def _cancel(self, command: CancelDraft | CancelAsk | CloseWatch) -> None:
        match command:
            case CancelDraft():
                key = ("draft", command.draft)
            case CancelAsk():
                key = ("ask", command.ask)
            case CloseWatch():
                key = ("watch", command.watch)
        scope = self._scopes.get(key)
        if scope is not None:
            scope.cancel()
