"""The loop that runs a decoder's commands against the endpoints, and reports events to the decoder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

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
    Watch,
)
from cosd_api.decoding.run import AnswerJob
from cosd_providers.contract import DraftEnd, Ready, Token
from cosd_providers.errors import ResponseError

_log = logging.getLogger("cosd_api")

_Key = tuple[str, int]  # a request's kind and number
_CommandT = TypeVar("_CommandT", StartDraft, Ask, Watch)

GRACE_SECONDS = 2.0
"""Number of seconds to wait for a draft that has written the answer's last token, because its bill arrives at the end.
"""

LOOK_SECONDS = 0.01
"""Number of seconds from the start of a question until a timer measures the lateness of the event loop."""

FIRST_SECONDS = 0.001
"""Number of seconds after which a new draft is assumed to use the connection that was opened for it in advance."""


class Driver:
    """One answer in progress, in which a decoder makes the decisions; an implementation of `Run`.

    Args:
        decoder: the decoder, which makes the decisions.
        job: the models, limits, settings and record of the answer.
    """

    def __init__(self, decoder: Decoder, job: AnswerJob) -> None:
        self.decoder = decoder
        self.calls = Calls(job.turns, job.budget, job.timeline, room=job.room)
        self._job = job
        draft = job.turns[0].provider
        self._ready = draft if isinstance(draft, Ready) else None
        self._error: Exception | None = None
        self._idle = anyio.Event()
        self._scopes: dict[_Key, anyio.CancelScope] = {}
        self._may_pause = self._unknown = False
        self._group: TaskGroup

    @property
    def finished(self) -> Finish | None:
        """The end of the answer; None until the answer is complete."""
        return self.decoder.finished

    def stop_here(self, finish: Finish) -> None:
        """End the answer after its emitted tokens. This has no effect on a complete answer."""
        self.decoder.stop_here(finish)

    def report(self) -> Report:
        """The report on the answer so far."""
        return self.decoder.report()

    async def run(self) -> None:
        """Run until the answer ends.

        Raises:
            ProviderError: an endpoint failed, and the answer cannot continue without it. All other requests are
                cancelled.
        """
        # A draft that continues from text may encode the text into tokens that it had not written. If such a draft were
        # paused, the answer would depend on where requests end, and therefore on timing.
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
        """Report an event to the decoder, and carry out its commands."""
        self.decoder.now = self._job.timeline.now()
        try:
            self._do(happen(*what))
        except Exception as error:  # noqa: BLE001 - such as an error of a verifier, which run() raises
            self._fail(error)
        if self._unknown or self._job.lateness.late or self.decoder.late:
            self._judge_lateness(self._unknown and any(kind == "ask" for kind, _ in self._scopes))

    def _judge_lateness(self, unknown: bool) -> None:
        """Tell the decoder whether this process receives events late."""
        self.decoder.late = self._may_pause and (unknown or self._job.lateness.late)

    def _look(self, due: float) -> None:
        """Measure how late the event loop runs a timer that was due at `due`."""
        self._job.lateness.woken(asyncio.get_running_loop().time() - due)

    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Emit():
                    self._job.emit(command.tokens)
                case StartDraft() | Ask() | Watch():
                    self._start(command)
                case Heard():
                    self.calls.heard(command.watch, command.assistant)
                case CancelDraft():
                    self._cancel(("draft", command.draft))
                case CancelAsk():
                    self._cancel(("ask", command.ask))
                case CloseWatch():
                    self._cancel(("watch", command.watch))
                case Fail():
                    self._fail(command.error)
                case Finish():
                    if not self._scopes:
                        self._idle.set()
                    self._group.start_soon(self._finish)

    def _start(self, command: StartDraft | Ask | Watch) -> None:
        match command:
            case StartDraft():
                self._begin(("draft", command.draft), 0, self._draft, command, self.decoder.draft_failed)
                if self._ready is not None:
                    self._group.start_soon(self._keep_ready, self._ready)
            case Ask():
                assistant = 1 + command.assistant
                self._begin(("ask", command.ask), assistant, self._ask, command, self.decoder.ask_failed)
            case Watch():
                assistant = 1 + command.assistant
                self._begin(("watch", command.watch), assistant, self._watch, command, self.decoder.watch_failed)

    async def _keep_ready(self, draft: Ready) -> None:
        """Let the provider open a connection for the next draft, because cancelling a stream closes its connection."""
        await anyio.sleep(FIRST_SECONDS)
        with suppress(Exception):  # a failure only costs time
            if await draft.keep_ready() is False:
                self._ready = None

    async def _finish(self) -> None:
        # A draft that is still open has written its last token, and its bill will arrive immediately.
        with anyio.move_on_after(GRACE_SECONDS):
            await self._idle.wait()
        self._group.cancel_scope.cancel()

    def _begin(
        self,
        key: _Key,
        model: int,
        run: Callable[[_CommandT], Awaitable[None]],
        command: _CommandT,
        failed: Callable[[int, Exception], Sequence[Command]],
    ) -> None:
        """Start a request to a model. If it fails, the decoder decides whether the failure matters."""
        scope = self._scopes[key] = anyio.CancelScope()
        kind, number = key

        async def request() -> None:
            with scope:
                try:
                    await run(command)
                except Exception as error:  # noqa: BLE001 - the decoder decides whether it matters
                    _log.debug("a request failed (%s): %s", kind, type(error).__name__)
                    self._step(failed, number, placed(error, self._job.turns[model].provider))
                finally:
                    self._scopes.pop(key, None)
                    if not self._scopes and self.decoder.finished:
                        self._idle.set()

        self._group.start_soon(request)

    async def _draft(self, command: StartDraft) -> None:
        def take(item: Token | DraftEnd) -> bool:
            event = self.decoder.drafted if isinstance(item, Token) else self.decoder.draft_ended
            self._step(event, command.draft, item)
            return False

        await self.calls.generate(0, command, take, counts=lambda: self.decoder.finished is None)

    async def _watch(self, command: Watch) -> None:
        def take(item: Token | DraftEnd) -> bool:
            event = self.decoder.watched if isinstance(item, Token) else self.decoder.watch_ended
            self._step(event, command.watch, item)
            return False

        await self.calls.watch(command, take, counts=lambda: self.decoder.finished is None)

    async def _ask(self, command: Ask) -> None:
        loop, began = asyncio.get_running_loop(), self._job.timeline.now()
        loop.call_later(LOOK_SECONDS, self._look, loop.time() + LOOK_SECONDS)
        proposals = await self.calls.propose(
            1 + command.assistant,
            command.text,
            command.questions,
            number=command.ask,
            alternatives=command.alternatives,
            paths=command.paths,
        )
        self._unknown = False
        self._job.lateness.heard(self._job.timeline.now() - began, loop.time())
        self._step(self.decoder.answered, command.ask, proposals)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._group.cancel_scope.cancel()

    def _cancel(self, key: _Key) -> None:
        if (scope := self._scopes.get(key)) is not None:
            scope.cancel()
