"""`FusionStream`: one fused answer under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Self

import anyio

from cosd_api.decoding.commands import Placed
from cosd_api.decoding.cosd import CoSD
from cosd_api.decoding.driver import Driver
from cosd_api.endpoints import Endpoints, Learned
from cosd_api.errors import FusionClosedError
from cosd_api.result import EndpointUsage, FusedToken, FusionResult, Settings, Timings, describe_verifier
from cosd_api.settings import Plan
from cosd_providers.contract import Usage
from cosd_providers.text import readable


class FusionStream:
    """A fused answer under way; made by `Fusion.stream`.

    An async context manager and an async iterator over `FusedToken`. After the last token `result` is there.
    """

    def __init__(self, endpoints: Endpoints, plan: Plan, prompt: str, max_tokens: int, stop: tuple[str, ...]) -> None:
        self._endpoints = endpoints
        self._plan = plan
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._stop = stop
        self._tokens: asyncio.Queue[FusedToken | None] = asyncio.Queue()
        self._all: list[FusedToken] = []
        self._task: asyncio.Task[None] | None = None
        self._result: FusionResult | None = None
        self._ended = False
        self._first_token: float | None = None

    @property
    def result(self) -> FusionResult:
        """The whole answer.

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
        # One plain task, so that the stream can be left from any task; inside it everything is in task groups.
        self._task = asyncio.create_task(self._run())  # noqa: TID251
        self._task.add_done_callback(lambda _: self._tokens.put_nowait(None))
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
        token = None if self._ended else await self._tokens.get()
        if token is None:
            self._ended = True
            self._tokens.put_nowait(None)  # for whoever else reads
            if self._task.cancelled():
                raise FusionClosedError("the stream was left before its end")
            self._task.result()  # raises what went wrong
            raise StopAsyncIteration
        return token

    async def _run(self) -> None:
        endpoints, plan = self._endpoints, self._plan
        learned = await endpoints.learn()
        await endpoints.check_length(self._prompt)
        decoder = CoSD(
            plan.verifier,
            unit=learned.unit,
            max_tokens=self._max_tokens,
            assistants=len(endpoints.assistants),
            stop=[stop.encode() for stop in self._stop],
            draft_length=plan.draft_length,
            max_ahead=plan.max_ahead,
            skip=plan.ask == "contestable",
        )
        ledgers = [Usage() for _ in range(1 + len(endpoints.assistants))]

        def emit(tokens: Sequence[Placed]) -> None:
            if self._first_token is None and tokens:
                self._first_token = time.perf_counter() - self._began
            for placed in tokens:
                token = FusedToken.of(placed, endpoints.names, plan.verifier)
                self._all.append(token)
                self._tokens.put_nowait(token)

        driver = Driver(decoder, self._prompt, endpoints.draft, endpoints.assistants, ledgers, emit)
        await driver.run()
        self._result = self._build(learned, decoder, driver, ledgers)

    def _build(self, learned: Learned, decoder: CoSD, driver: Driver, ledgers: Sequence[Usage]) -> FusionResult:
        assert decoder.finished is not None
        total = time.perf_counter() - self._began
        counts = decoder.counts
        judged = counts.kept + counts.replaced
        plan = self._plan
        names = ["draft", *self._endpoints.names]
        return FusionResult(
            text=readable(bytes(decoder.response.text)),
            finish_reason=decoder.finished.finish_reason,
            stop_reason=decoder.finished.stop_reason,
            tokens=tuple(self._all),
            acceptance_rate=counts.kept / judged if judged else 1.0,
            replacements=counts.replacements,
            iterations=counts.iterations,
            kept_tokens=counts.kept,
            replaced_tokens=counts.replaced,
            drafted_tokens=driver.drafted_tokens,
            draft_requests=driver.draft_requests,
            assistant_requests=driver.assistant_requests,
            usage={name: EndpointUsage.of(ledger) for name, ledger in zip(names, ledgers, strict=True)},
            timings=Timings(
                total=total,
                first_token=self._first_token,
                per_token=total / len(self._all) if self._all else None,
            ),
            warnings=(*learned.warnings_for(self._prompt), *driver.warnings()),
            draft=learned.draft,
            assistants=learned.assistants,
            settings=Settings(
                verifier=describe_verifier(plan.verifier),
                unit=learned.unit,
                max_tokens=self._max_tokens,
                stop=self._stop,
                draft_length=plan.draft_length,
                max_ahead=plan.max_ahead,
                ask=plan.ask,
            ),
        )


async def settled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits until cancelled tasks have closed what they held, even while being cancelled itself."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):  # from anyio's cancellation; asyncio's own is put off
        while waiting := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError as error:
                cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen; whoever waited for it has raised it
    if cancelled is not None:
        raise cancelled
