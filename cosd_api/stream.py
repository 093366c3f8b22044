"""The class `FusionStream`, which is one fused answer in progress."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Sequence
from typing import Any, Self

import anyio

from cosd_api.budget import Budget, timed_out
from cosd_api.common.tasks import settled
from cosd_api.complete_answer import complete_answer
from cosd_api.decoding.answer_job import AnswerJob, Run
from cosd_api.decoding.commands import Finish, Placed, may_pass
from cosd_api.decoding.timeline import Timeline
from cosd_api.endpoints import Endpoints
from cosd_api.errors import FusionClosedError
from cosd_api.estimate import Past, counted, guessed
from cosd_api.preparation import Preparation, draft_job, is_a_models, prepare, program_job
from cosd_api.records import DRAFT, EndpointUsage, FusedToken, Timings
from cosd_api.result import FusionResult
from cosd_api.settings import AnswerLimits, FusionSettings
from cosd_api.telemetry import FusionSpan, fusion_span
from cosd_providers.errors import BudgetError, ProviderError
from cosd_providers.http.retries import RetriedFailures, longest_wait
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.usage import Usage


class FusionStream:
    """A fused answer in progress, created by `Fusion.stream`.

    The stream is an async context manager and an async iterator over `FusedToken`. After the last token, `result` is
    available.

    Attributes:
        most_unread: number of tokens that may wait to be read. If more tokens wait, all models pause until the reader
            has caught up. Therefore a slow reader needs little memory, and the models do not write far ahead of it.
            None, the default, means no limit.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        settings: FusionSettings,
        prompt: str | Sequence[Message],
        limits: AnswerLimits,
        past: Past,
    ) -> None:
        self._endpoints = endpoints
        self._settings = settings
        self._prompt = prompt
        self._limits = limits.seeded(settings.method)
        self._past = past
        self._ledgers = {name: Usage() for name in (DRAFT, *endpoints.names)}
        self._all: list[FusedToken] = []
        self._read = 0  # number of tokens that the caller has read
        self._news = asyncio.Event()  # set when a token arrives, and when the answer ends
        self._task: asyncio.Task[None] | None = None
        self._result: FusionResult | None = None
        self._first_token: float | None = None
        self._notes: list[str] = []
        self._silent: dict[str, str] = {}  # endpoints of assistants that show no text of a token, by name
        self._span = FusionSpan()
        self.most_unread: int | None = None
        self._caught_up = asyncio.Event()

    # ---------------------------------------------------------------------------------------------------- the reader

    @property
    def usage(self) -> dict[str, EndpointUsage]:
        """The usage that each endpoint has billed so far, which is final as soon as the stream is left."""
        return {name: EndpointUsage.of(ledger) for name, ledger in self._ledgers.items()}

    @property
    def result(self) -> FusionResult:
        """The complete answer.

        Raises:
            FusionClosedError: the stream has not ended yet, or was left before its end.
        """
        if self._result is None:
            raise FusionClosedError("there is no result: read the stream to its end first")
        return self._result

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise FusionClosedError("a stream runs once; make another one with fusion.stream(...)")
        self._began = time.perf_counter()
        # This is a plain task, because another task may leave the stream. All tasks inside it belong to task groups.
        self._task = asyncio.create_task(self._run())  # noqa: TID251
        self._task.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await settled([self._task])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FusedToken:
        if self._task is None:
            raise FusionClosedError("open the stream first: async with fusion.stream(prompt) as stream:")
        while self._read == len(self._all) and not self._task.done():
            self._news.clear()
            await self._news.wait()
        if self._read == len(self._all):
            if self._task.cancelled():
                raise FusionClosedError("the stream was left before its end")
            self._task.result()  # raises the task's error
            raise StopAsyncIteration
        self._read += 1
        if self.most_unread is not None and self.unread <= self.most_unread // 2:
            self._caught_up.set()
        return self._all[self._read - 1]

    async def finished(self) -> FusionResult:
        """Wait for the complete answer, with the same errors as reading the tokens."""
        assert self._task is not None
        await asyncio.wait([self._task])
        self._read = len(self._all)
        async for _ in self:
            pass
        return self.result

    @property
    def unread(self) -> int:
        """The number of tokens that can be read without waiting."""
        return len(self._all) - self._read

    @property
    def partial(self) -> Any:
        """The value of the text read so far, if the answer has a `response_format`; see `ResponseFormat.partial`."""
        chosen = self._limits.response_format
        return None if chosen is None else chosen.partial("".join(one.text for one in self._all[: self._read]))

    def _room(self) -> asyncio.Event | None:
        """An event that is set as soon as the reader has caught up, if too many tokens are unread; else None."""
        if self.most_unread is None or self.unread <= self.most_unread:
            return None
        self._caught_up.clear()
        return self._caught_up

    # ---------------------------------------------------------------------------------------------------- the answer

    async def _run(self) -> None:
        with fusion_span(self._settings.method.name, self._prompt) as self._span:
            try:
                await self._answer()
            finally:
                self._span.billed(self.usage)  # also if the stream was left early

    async def _answer(self) -> None:
        """Prepare the answer, run it within its limits, and store its result."""
        timeout = self._limits.timeout
        error: ProviderError | None = None
        # This is a local variable because a run refers to its stream; an attribute would create a reference cycle.
        work: tuple[Preparation, Timeline, Run] | None = None
        failures = RetriedFailures()
        patience = longest_wait(self._endpoints.longest_wait)
        with failures.recorded(), patience, anyio.move_on_after(timeout) as time_limit:
            try:
                found = await prepare(self._endpoints, self._settings, self._prompt, self._limits)
                job = self._job(found)
                run = self._settings.method.start(job)
                work = found, job.timeline, run
                await self._expect(job.budget, found.turns[0])
                await self._fuse(found, run)
            except ProviderError as failed:
                error = failed
        if timeout is not None and time_limit.cancelled_caught:
            error = timed_out(timeout, failures.last or self._endpoints.failures.last, started=work is not None)
            if error.__cause__ is not None:
                self._notes.append(error.args[0])
        if work is None:  # preparation failed, so there is no run
            assert error is not None
            raise error
        if error is not None:
            work[-1].stop_here(_finish(error))  # has no effect on a complete answer
        result = self._complete(*work)
        self._span.answered(result)
        raises = ("error", "budget") if self._limits.on_budget == "raise" else ("error",)
        if error is not None and result.finish_reason in raises:
            error.partial = result
            raise error
        if result.finish_reason != "budget":
            self._past.add(work[0].turns[0].prompt, result)
        self._result = result

    def _job(self, found: Preparation) -> AnswerJob:
        """Everything that the method needs to write the answer."""
        endpoints, settings, limits = self._endpoints, self._settings, self._limits
        characters = codecs.getincrementaldecoder("utf-8")("ignore") if found.parts else None

        def emit(tokens: Sequence[Placed]) -> None:
            now = time.perf_counter() - self._began
            if self._first_token is None and tokens:
                self._first_token = now
            for placed in tokens:
                whole = None if characters is None else characters.decode(placed.token.data)
                token = FusedToken.of(
                    placed,
                    endpoints.names,
                    settings.verifier,
                    now=now,
                    characters=whole,
                    alternatives=limits.alternatives,
                )
                self._all.append(token)
            self._news.set()

        ledgers = [*self._ledgers.values()]
        return AnswerJob(
            routes=found.routes,
            turns=found.turns,
            names=[*self._ledgers],
            budget=Budget(ledgers, max_requests=limits.max_requests, max_billed_tokens=limits.max_billed_tokens),
            emit=emit,
            timeline=Timeline(self._began, self._span.observer((found.facts.draft, *found.facts.assistants))),
            max_tokens=limits.max_tokens,
            stop=[stop.encode() for stop in limits.stop],
            survives=is_a_models if settings.on_assistant_error == "draft" else lambda _: False,
            without={at: error for at, error in found.facts.without.items() if at >= 0},
            room=self._room,
            drafts=draft_job(endpoints, settings, limits, found),
            program=program_job(endpoints, settings, limits, found),
        )

    async def _expect(self, budget: Budget, turn: RenderedPrompt) -> None:
        """Refuse a limit that is lower than the cost of any answer."""
        if self._limits.max_billed_tokens is None:
            return
        count = await counted(turn.provider, turn.prompt)
        prompt = guessed(turn.prompt) if count is None else count
        try:
            budget.expect(prompt, len(turn.prompt.encode()), counted=count is not None)
        except BudgetError as error:
            self._notes.append(error.args[0])
            raise

    async def _fuse(self, found: Preparation, run: Run) -> None:
        """Run the method, and find out about models that failed or could not answer."""
        names = self._endpoints.names
        try:
            await run.run()
            for at, turn in enumerate(found.turns[1:] if run.report().unanswered else ()):
                if at not in run.report().lost and not (info := await turn.on_path.describe()).capabilities.texts:
                    self._silent[names[at]] = info.endpoint
        finally:
            breaker, lost, seams = self._endpoints.breaker, run.report().lost, run.report().seams
            down = seams[0].error if seams and seams[-1].error is not None else None  # it may have returned since
            if -1 not in found.facts.without and down is not None and may_pass(down):
                breaker.failed(-1, down)
            for at, name in enumerate(names):
                loss = lost.get(at)
                if loss is None and self._ledgers[name].first_token_seconds is not None:
                    breaker.answered(at)
                elif loss is not None and not loss.before and may_pass(loss.error):
                    breaker.failed(at, loss.error)

    def _complete(self, found: Preparation, timeline: Timeline, run: Run) -> FusionResult:
        total, discovery = time.perf_counter() - self._began, found.discovered - self._began
        return complete_answer(
            found,
            run,
            self._all,
            settings=self._settings,
            limits=self._limits,
            ledgers=self._ledgers,
            timeline=timeline,
            timings=Timings(
                total=total,
                first_token=self._first_token,
                per_token=(total - discovery) / len(self._all) if self._all else None,
                discovery=discovery,
            ),
            notes=self._notes,
            silent=self._silent,
        )


def _finish(error: ProviderError) -> Finish:
    """The finish of an answer that an error ended."""
    if isinstance(error, BudgetError):
        return Finish("budget", error.limit)
    return Finish("error", type(error).__name__)
