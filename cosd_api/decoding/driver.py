"""The loop that feeds a decoder: runs its commands against the endpoints, and brings back events."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from cosd_api.budget import Budget
from cosd_api.decoding.commands import (
    Ask,
    CancelAsk,
    CancelDraft,
    Command,
    Decoder,
    Emit,
    Fail,
    Finish,
    Placed,
    StartDraft,
    Wait,
)
from cosd_api.decoding.timeline import Kind, Timeline
from cosd_providers.contract import DraftEnd, Provider, Ready, Token
from cosd_providers.errors import BudgetError, ProviderError, ResponseError, UnsupportedError
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import merge, sendable

_log = logging.getLogger("cosd_api")

GRACE_SECONDS = 2.0
"""Time for a draft that has written its last token to end (and report what it billed)."""

FIRST_SECONDS = 0.001
"""After this time a draft that was started has taken the connection that was ready."""


class Driver:
    """One fusion in progress.

    Args:
        decoder: decides what to do.
        turns: the draft and the assistants, each with its rendered prompt.
        budget: the limits of what they may spend together.
        emit: takes the tokens as they become final.
        timeline: records the requests.
        batch_wait: seconds that a `Wait` takes.

    Attributes:
        draft_requests, assistant_requests, drafted_tokens: as in `FusionResult`.
        reencoded: whether the draft's endpoint was seen to read its own text as other tokens than it wrote.
    """

    def __init__(
        self,
        decoder: Decoder,
        turns: Sequence[RenderedPrompt],
        budget: Budget,
        emit: Callable[[Sequence[Placed]], None],
        timeline: Timeline,
        batch_wait: float = 0.0,
    ) -> None:
        self.decoder = decoder
        self.prompt = turns[0].prompt
        self.draft = turns[0].provider
        self.assistants = turns[1:]
        self._sizes = [len(turn.prompt.encode()) for turn in turns]
        self.budget = budget
        self.emit = emit
        self.timeline = timeline
        self._batch_wait = batch_wait
        self.draft_requests = 0
        self.assistant_requests = 0
        self.drafted_tokens = 0
        self.reencoded = False
        self._error: Exception | None = None
        self._idle = anyio.Event()
        self._scopes: dict[tuple[str, int], anyio.CancelScope] = {}
        self._group: TaskGroup

    async def run(self) -> None:
        """Run to the end of the answer.

        Raises:
            ProviderError: an endpoint failed, and the answer cannot continue without it; everything else is cancelled.
        """
        async with anyio.create_task_group() as self._group:
            self._step(self.decoder.start)
        if self._error is not None:
            raise self._error
        if self.decoder.finished is None:
            raise ResponseError("a provider gave up without an answer or an error")

    def _step(self, happen: Callable[..., Sequence[Command]], *what: Any) -> None:
        """Report an event to the decoder, and do what it commands."""
        self.decoder.now = self.timeline.now()
        try:
            self._do(happen(*what))
        except Exception as error:  # noqa: BLE001 - a verifier's own, say: run() raises it
            self._fail(error)

    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Emit():
                    self.emit(command.tokens)
                case StartDraft():
                    self._group.start_soon(self._run_draft, command, self._scope("draft", command.draft))
                    if isinstance(self.draft, Ready):
                        self._group.start_soon(self._keep_ready, self.draft)
                case Ask():
                    self._group.start_soon(self._run_ask, command, self._scope("ask", command.ask))
                case Wait():
                    self._group.start_soon(self._wait, command.wait)
                case CancelDraft():
                    self._cancel("draft", command.draft)
                case CancelAsk():
                    self._cancel("ask", command.ask)
                case Fail():
                    self._fail(command.error)
                case Finish():
                    if not self._scopes:
                        self._idle.set()
                    self._group.start_soon(self._finish)

    async def _wait(self, number: int) -> None:
        await anyio.sleep(self._batch_wait)
        self._step(self.decoder.waited, number)

    async def _keep_ready(self, draft: Ready) -> None:
        """Have a connection made for the next draft: a stream that is left takes its own with it."""
        await anyio.sleep(FIRST_SECONDS)
        with suppress(Exception):  # it only saves time
            await draft.keep_ready()

    async def _finish(self) -> None:
        # A draft that is still there has written its last token: its bill follows at once.
        with anyio.move_on_after(GRACE_SECONDS):
            await self._idle.wait()
        self._group.cancel_scope.cancel()

    async def _run_draft(self, command: StartDraft, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                self.budget.check()
                self.draft_requests += 1
                if command.own and command.continuation is None:
                    await self._compare_encodings(command)
                await self._read_draft(command)
            except Exception as error:  # noqa: BLE001 - the decoder decides whether it matters
                _log.debug("a draft failed: %s", type(error).__name__)
                self._step(self.decoder.draft_failed, command.draft, _placed(error, self.draft))
            finally:
                self._closed("draft", command.draft)

    async def _read_draft(self, command: StartDraft) -> None:
        last: Token | DraftEnd | None = None
        kind: Kind = "hedge" if command.ahead else "draft"
        with self.timeline.request(0, kind, command.draft, at=len(command.text)) as span:
            with self.budget.spending(0, [self._sizes[0] + len(command.text)], drafts=True) as usage:
                # Asked for only where they are of use, so that a provider need not know the keyword.
                also = {"alternatives": command.alternatives} if command.alternatives else {}
                stream = self.draft.generate(
                    self.prompt,
                    command.text,
                    max_tokens=command.max_tokens,
                    continuation=command.continuation,
                    usage=usage,
                    **also,
                )
                async with aclosing(stream):
                    async for item in stream:
                        if isinstance(item, Token):
                            _check_probs([item], self.draft.name)
                            self.drafted_tokens += 1
                            span.wrote(self.timeline.now())
                            self._step(self.decoder.drafted, command.draft, item)
                            if self.decoder.finished is None:  # else its bill is all that is waited for
                                usage.wrote()
                        else:
                            self._check_end(item, last)
                            self._step(self.decoder.draft_ended, command.draft, item)
                        last = item
            if not isinstance(last, DraftEnd):
                raise ResponseError("generate() ended without a DraftEnd", endpoint=self.draft.name)

    async def _compare_encodings(self, command: StartDraft) -> None:
        """Find out whether a text-only endpoint reads the draft's text back as the tokens that it wrote."""
        if self.reencoded or not (await self.draft.describe()).capabilities.tokenize:
            return
        try:
            pieces = await self.draft.tokenize(self.prompt + sendable(command.text))
        except UnsupportedError:  # of this text it cannot be known
            return
        tokens = [token.data for token in merge(Token(piece.data, None) for piece in pieces)]
        self.reencoded = tokens[-len(command.own) :] != list(command.own)

    def _check_end(self, end: DraftEnd, last: Token | DraftEnd | None) -> None:
        """Refuse an end that breaks the contract: drafting would never end."""
        if end.reason == "limit" and last is None:
            raise ResponseError("generate() reached its limit without a token", endpoint=self.draft.name)
        if end.reason == "end" and not (isinstance(last, Token) and last.end):
            raise ResponseError("generate() ended without an end token before", endpoint=self.draft.name)

    async def _run_ask(self, command: Ask, scope: anyio.CancelScope) -> None:
        with scope:
            assistant, prompt = self.assistants[command.assistant].provider, self.assistants[command.assistant].prompt
            try:
                self.budget.check()
                self.assistant_requests += 1
                before = self._sizes[1 + command.assistant]
                sizes = [before + question.start for question in command.questions]
                who, first = 1 + command.assistant, command.questions[0].start
                with self.timeline.request(who, "question", command.ask, at=first, places=len(sizes)):
                    with self.budget.spending(who, sizes) as usage:
                        proposals = await assistant.propose(prompt, command.text, command.questions, usage=usage)
                    if len(proposals) != len(command.questions):
                        words = f"propose() gave {len(proposals)} answers to {len(command.questions)} questions"
                        raise ResponseError(words, endpoint=assistant.name)
                    for proposal in proposals:
                        _check_probs(proposal.tokens if proposal is not None else (), assistant.name)
            except Exception as error:  # noqa: BLE001 - the decoder decides whether it matters
                _log.debug("a question failed: %s", type(error).__name__)
                self._step(self.decoder.ask_failed, command.ask, _placed(error, assistant))
            else:
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

    def _cancel(self, kind: str, number: int) -> None:
        scope = self._scopes.get((kind, number))
        if scope is not None:
            scope.cancel()


def _placed(error: Exception, provider: Provider) -> Exception:
    """The error with its endpoint; a limit has none."""
    if isinstance(error, ProviderError) and not error.endpoint and not isinstance(error, BudgetError):
        error.endpoint = provider.name
    return error


def _check_probs(tokens: Iterable[Token], endpoint: str) -> None:
    """Refuse numbers that are not probabilities: a verdict on them would be meaningless."""
    for token in tokens:
        if token.prob is not None and not 0 <= token.prob <= 1:
            words = f"the probability of a token is {token.prob!r}, which is not between 0 and 1"
            raise ResponseError(words, endpoint=endpoint, hint="A logarithm becomes a probability by math.exp.")
