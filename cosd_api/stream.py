"""The class `FusionStream`, which is one fused answer in progress."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, TypeGuard

import anyio

from cosd_api import answer_warnings
from cosd_api.budget import Budget, timed_out
from cosd_api.common.tasks import settled
from cosd_api.decoding.answer_job import AnswerJob, Run
from cosd_api.decoding.commands import Finish, Placed, Report
from cosd_api.decoding.route import BY_IDS, Route, Routes, in_words
from cosd_api.decoding.timeline import Timeline
from cosd_api.decoding.watches import watched
from cosd_api.endpoints import Endpoints, Facts
from cosd_api.errors import FusionClosedError
from cosd_api.estimate import Past, counted, guessed, prompt_tokens
from cosd_api.records import DRAFT, EndpointUsage, FusedToken, Request, Segment, Timings
from cosd_api.result import FusionResult
from cosd_api.settings import AnswerLimits, FusionSettings, Settings
from cosd_api.telemetry import FusionSpan, fusion_span
from cosd_providers.contract import ServerInfo
from cosd_providers.errors import BudgetError, ProviderError, UnsupportedError
from cosd_providers.http.retries import RetriedFailures
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.text import readable, sendable
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
        self._turns: list[RenderedPrompt] = []
        self._ledgers = [Usage() for _ in range(1 + len(endpoints.assistants))]
        self._all: list[FusedToken] = []
        self._read = 0  # number of tokens that the caller has read
        self._news = asyncio.Event()  # set when a token arrives, and when the answer ends
        self._task: asyncio.Task[None] | None = None
        self._result: FusionResult | None = None
        self._first_token: float | None = None
        self._discovery = 0.0
        self._notes: list[str] = []
        self._silent: dict[str, str] = {}  # endpoints of assistants that show no text of a token, by name
        self._span = FusionSpan()
        self._routes = Routes("text", ())
        self._named: dict[str, Route] = {}  # the routes of the models with which the answer began
        self._characters = codecs.getincrementaldecoder("utf-8")("ignore")
        self.most_unread: int | None = None
        self._caught_up = asyncio.Event()

    @property
    def usage(self) -> dict[str, EndpointUsage]:
        """The usage that each endpoint has billed so far, which is final as soon as the stream is left."""
        return {name: EndpointUsage.of(one) for name, one in zip(self._names, self._ledgers, strict=True)}

    @property
    def _names(self) -> list[str]:
        return [DRAFT, *self._endpoints.names]

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

    async def _run(self) -> None:
        with fusion_span(self._settings.method.name, self._prompt) as self._span:
            try:
                await self._answer()
            finally:
                self._span.billed(self.usage)  # also if the stream was left early

    async def _answer(self) -> None:
        timeout = self._limits.timeout
        error: ProviderError | None = None
        # This is a local variable because a run refers to its stream; an attribute would create a reference cycle.
        work: tuple[Facts, Budget, Run] | None = None
        failures = RetriedFailures()
        with failures.recorded(), anyio.move_on_after(timeout) as time_limit:
            try:
                _, budget, run = work = await self._prepare()
                await self._fuse(budget, run)
            except ProviderError as failed:
                error = failed
        if timeout is not None and time_limit.cancelled_caught:
            error = timed_out(timeout, failures.last or self._endpoints.failures.last, started=work is not None)
            if error.__cause__ is not None:
                self._notes.append(error.args[0])
        if work is None:  # preparation failed, so there is no run
            assert error is not None
            raise error
        facts, _, run = work
        if error is not None:
            run.stop_here(_finish(error))  # has no effect on a complete answer
        result = self._build(facts, run)
        self._span.answered(result)
        raises = ("error", "budget") if self._limits.on_budget == "raise" else ("error",)
        if error is not None and result.finish_reason in raises:
            error.partial = result
            raise error
        if result.finish_reason != "budget":
            self._past.add(self._turns[0].prompt, result)
        self._result = result

    async def _prepare(self) -> tuple[Facts, Budget, Run]:
        """Discover the models, choose their routes, check the prompt, and create the budget and the run."""
        facts = await self._find_models()
        infos = {at: await one.on_path.describe() for at, one in enumerate(self._turns, -1) if at not in facts.without}
        self._routes = facts.routes(self._settings.method, infos)
        self._named = self._routes.named(self._names, facts.without)
        if self._limits.alternatives and not (self._judges_ids and self._routes.same_ids):
            raise UnsupportedError(_no_alternatives({} if self._settings.method.own_paths else self._named))
        self._timeline = Timeline(self._began, self._span.observer((facts.draft, *facts.assistants)))
        limits = self._limits
        budget = Budget(self._ledgers, max_requests=limits.max_requests, max_billed_tokens=limits.max_billed_tokens)
        return facts, budget, self._settings.method.start(self._job(facts, infos, budget))

    async def _find_models(self) -> Facts:
        """Discover the models, and render the prompt for each of them."""
        endpoints, settings, own = self._endpoints, self._settings, self._limits.own
        facts = await endpoints.discover()
        self._discovery = time.perf_counter() - self._began
        facts = await endpoints.check_messages(self._prompt, facts, own)
        self._turns, facts = await endpoints.turns(self._prompt, settings.on_special_tokens, facts, own)
        facts = await endpoints.check_length(self._turns, facts)
        return endpoints.apart(settings.method, self._turns, facts)

    def _job(self, facts: Facts, infos: Mapping[int, ServerInfo], budget: Budget) -> AnswerJob:
        """Everything that the method needs to write the answer."""
        endpoints, settings, limits = self._endpoints, self._settings, self._limits
        places = [infos[at].capabilities.places if at in infos else 1 for at in range(len(endpoints.assistants))]
        watches = watched(infos, endpoints.speeds)
        return AnswerJob(
            routes=self._routes,
            turns=self._turns,
            plain=endpoints.plain(self._prompt),
            names=self._names,
            budget=budget,
            emit=self._emit,
            timeline=self._timeline,
            max_tokens=limits.max_tokens,
            stop=[stop.encode() for stop in limits.stop],
            unit=facts.unit,
            survives=_is_an_assistants if settings.on_assistant_error == "draft" else lambda _: False,
            without=facts.without,
            pace=replace(
                settings.pace,
                places=tuple(places),
                leases=infos[-1].capabilities.places == 1,
                watched=watches,
                questions_only=frozenset(at for at, info in infos.items() if info.capabilities.watch is False),
                shown=limits.alternatives,
            ),
            skip=settings.ask == "contestable",
            tie=settings.tie,
            ends=_ends(infos, self._routes) if self._judges_ids else (),
            cuts=facts.cuts,
            seed=limits.seed or 0,
            conversation=None if isinstance(self._prompt, str) else self._prompt,
            render=partial(endpoints.render, on_special_tokens=settings.on_special_tokens, own=limits.own),
            room=self._room,
            rate=endpoints.rate,
            speeds=endpoints.speeds,
        )

    async def _fuse(self, budget: Budget, run: Run) -> None:
        await self._expect(budget, self._turns[0])
        try:
            await run.run()
            if run.report().unanswered:
                await self._find_silent(run)
        finally:
            self._report_failures(run)

    async def _find_silent(self, run: Run) -> None:
        """Find the assistants that could not answer because their servers do not show the texts of tokens."""
        for at, turn in enumerate(self._turns[1:]):
            if at not in run.report().lost and not (info := await turn.on_path.describe()).capabilities.texts:
                self._silent[self._endpoints.names[at]] = info.endpoint

    def _room(self) -> asyncio.Event | None:
        """An event that is set as soon as the reader has caught up, if too many tokens are unread; else None."""
        if self.most_unread is None or self.unread <= self.most_unread:
            return None
        self._caught_up.clear()
        return self._caught_up

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

    def _report_failures(self, run: Run) -> None:
        """Report to the circuit breaker which assistants failed and which ones answered."""
        breaker, lost = self._endpoints.breaker, run.report().lost
        for at, ledger in enumerate(self._ledgers[1:]):
            loss = lost.get(at)
            if loss is None and ledger.first_token_seconds is not None:
                breaker.answered(at)
            elif loss is not None and not loss.before and _may_pass(loss.error):
                breaker.failed(at, loss.error)

    @property
    def _judges_ids(self) -> bool:
        """True if Algorithm 1 judges the draft, and not by equation 3 as printed."""
        return self._settings.method.asks_by_ids and not self._routes.literal

    @property
    def _ids(self) -> bool:
        """True if all models with which the answer began are sent ids."""
        return all(route in BY_IDS for route in self._named.values())

    @property
    def _ties(self) -> bool:
        """True if ties can occur, because an assistant that judges the draft is sent ids."""
        return self._judges_ids and any(route in BY_IDS for name, route in self._named.items() if name != DRAFT)

    @property
    def _parts(self) -> bool:
        """True if tokens may be parts of characters."""
        return self._ids or (self._judges_ids and self._routes.draft == "ids")

    def _emit(self, tokens: Sequence[Placed]) -> None:
        now, parts = time.perf_counter() - self._began, self._parts
        if self._first_token is None and tokens:
            self._first_token = now
        for placed in tokens:
            characters = self._characters.decode(placed.token.data) if parts else None
            names, verifier = self._endpoints.names, self._settings.verifier
            shown = self._limits.alternatives
            token = FusedToken.of(placed, names, verifier, now=now, characters=characters, alternatives=shown)
            self._all.append(token)
        self._news.set()

    def _build(self, facts: Facts, run: Run) -> FusionResult:
        assert run.finished is not None
        total = time.perf_counter() - self._began
        report, calls = run.report(), run.calls
        sure = report.kept - sum(one.source == DRAFT and not one.verified for one in self._all)
        judged = sure + report.replaced
        method = self._settings.method
        names, everybody, usage = self._endpoints.names, self._names, self.usage
        unreported = [name for name, one in zip(everybody, self._ledgers, strict=True) if one.unreported]
        return FusionResult(
            text=sendable(report.text) if self._parts else readable(report.text),
            finish_reason=run.finished.finish_reason,
            stop_reason=run.finished.stop_reason,
            tokens=tuple(self._all),
            acceptance_rate=_rate(sure, judged, empty=not self._all) if report.judged else None,
            replacements=report.replacements if report.judged else None,
            iterations=report.iterations if report.judged else None,
            kept_tokens=report.kept if report.judged else None,
            replaced_tokens=report.replaced if report.judged else None,
            drafted_tokens=calls.drafted_tokens,
            ties=report.ties if self._ties else None,
            units=len({token.unit for token in self._all}) if report.judged else None,
            off_path=_off_path(self._all, report, ids=self._ids) if report.judged else None,
            unjudged=report.unjudged,
            wasted_tokens=max(0, calls.drafted_tokens - report.kept) if report.judged else None,
            hedged_drafts=report.hedged_drafts,
            hedge_hits=report.hedge_hits,
            hedged_tokens=report.hedged_tokens,
            draft_requests=calls.draft_requests,
            assistant_requests=calls.assistant_requests,
            usage=usage,
            timings=Timings(
                total=total,
                first_token=self._first_token,
                per_token=(total - self._discovery) / len(self._all) if self._all else None,
                discovery=self._discovery,
            ),
            warnings=(
                *facts.warnings_for(self._prompt),
                *(warning for turn in self._turns for warning in turn.warnings),
                *answer_warnings.reencoded(calls.reencoded),
                *answer_warnings.unanswered(report.unanswered, self._silent),
                *answer_warnings.losses(report.lost, names, self._all),
                *answer_warnings.unreported(usage, unreported),
                *(answer_warnings.cost(usage, method.judge) if report.judged else ()),
                *report.warnings,
                *dict.fromkeys(words for ledger in self._ledgers for words in ledger.warnings),
                *self._notes,
            ),
            draft=facts.draft,
            assistants=facts.assistants,
            settings=Settings.of(self._settings, self._limits, facts.unit, routes=self._named, ties=self._ties),
            segments=tuple(Segment.of(one, everybody) for one in report.segments),
            prompt_tokens=prompt_tokens(self._turns, self._timeline.spans),
            failures={names[at]: type(loss.error).__name__ for at, loss in sorted(report.lost.items())},
            weights=None if report.weights is None else {everybody[at]: one for at, one in report.weights.items()},
            requests=tuple(Request.of(span, everybody) for span in self._timeline.spans),
        )


def _no_alternatives(routes: Mapping[str, Route]) -> str:
    here = f" ({in_words(routes)})" if routes else ""
    words = f"other tokens of each place (alternatives, top_logprobs) are not listed here{here}: that needs models with"
    words += " the same token ids, and the method cosd or defer without a temperature. Leave them out; each token has"
    return f"{words} its own probability anyway"


def _rate(kept: int, judged: int, *, empty: bool) -> float | None:
    """The acceptance rate among the verified tokens; None if the answer has tokens but none of them is verified."""
    if judged:
        return kept / judged
    return 1.0 if empty else None


def _finish(error: ProviderError) -> Finish:
    """The finish of an answer that an error ended."""
    if isinstance(error, BudgetError):
        return Finish("budget", error.limit)
    return Finish("error", type(error).__name__)


def _ends(infos: Mapping[int, ServerInfo], routes: Routes) -> set[int]:
    """The end-of-sequence ids of the draft (key -1 of `infos`) and of the assistants that judge the draft's ids."""
    sharing = [at for at in infos if at < 0 or routes.assistants[at] == "ids"]
    return {one for at in sharing for one in infos[at].ends}


def _is_an_assistants(error: Exception) -> bool:
    """Test whether an assistant caused an error, as opposed to one of the caller's limits or the caller's own code."""
    return isinstance(error, ProviderError) and not isinstance(error, BudgetError)


def _may_pass(error: Exception) -> TypeGuard[ProviderError]:
    """Test whether an error is temporary. A permanent error would recur at once, or concerns only this text."""
    return isinstance(error, ProviderError) and error.retryable


def _off_path(tokens: Sequence[FusedToken], report: Report, *, ids: bool) -> int:
    """The number of units for which an assistant had to continue a cut text."""
    if report.off_path is not None:
        return report.off_path
    return 0 if ids else len({token.unit for token in tokens if token.decisions})
