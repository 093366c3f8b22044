"""`Fusion`: two or more models that write one text. `fuse` and `fuse_sync` are sugar over it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import anyio

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Placed
from cosd_api.decoding.cosd import CoSD
from cosd_api.decoding.driver import Driver
from cosd_api.errors import FusionClosedError, SettingError
from cosd_api.result import (
    Endpoint,
    EndpointUsage,
    FusedToken,
    FusionResult,
    Settings,
    Timings,
    describe_verifier,
)
from cosd_api.settings import check_count, check_prompt, check_stop, check_unit, check_verifier, refuse
from cosd_api.sync import synchronous
from cosd_api.verification import RuleVerifier, Verifier
from cosd_providers import connect
from cosd_providers.contract import Provider, ServerInfo, Usage
from cosd_providers.text import readable

TEST_TEXT = (
    "The quick brown fox, 1234567 + 89 = 42!\n\n\tdef f(x):  return x_1**2  # naïve café — “quoted”\n"
    "Übergrößenträger Привет мир 東京都に住んでいます 한국어 🙂👩‍🚀 <|im_start|> </s>"
)
"""What two tokenizers must encode alike to be taken for the same one: words, numbers, code, scripts, spaces."""

DEFAULT_MAX_TOKENS = 256


class Fusion:
    """A draft model that writes, assistants that are asked, and a verifier that decides whose word stands.

    Owns the connections to the endpoints that it was given as URLs, and what it learned of the servers; both stay
    for its lifetime, so keep one for many prompts. Constructing does no I/O. It can serve many prompts at once.

    Args:
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: the same, or several of them: every assistant judges every unit, and of those that would replace
            it the surest does.
        verifier: `RuleVerifier(alpha=0.5, beta=0.5)` by default, as in the paper.
        unit: what is judged together: `"token"` (Algorithm 1 to the letter), or `"word"` for models with different
            tokenizers. By default the two encodings of a test text are compared; `"word"` when in doubt.
        draft_length: the paper's fixed rounds of K draft tokens, each followed by its verification. By default one
            draft streams on and verification keeps up with it. It is a matter of cost only: the text is the same.
        max_ahead: at most so many tokens are drafted beyond what is verified. By default there is no bound.

    Raises:
        SettingError: a setting that a fusion cannot take, with the reason.
        cosd_providers.ProviderError: from every method, where an endpoint failed.
    """

    def __init__(
        self,
        *,
        draft: str | Provider,
        assistant: str | Provider | Sequence[str | Provider],
        verifier: Verifier | None = None,
        unit: Unit | None = None,
        draft_length: int | None = None,
        max_ahead: int | None = None,
        **refused: Any,
    ) -> None:
        refuse(refused, Fusion.__init__)
        self.verifier = check_verifier(verifier if verifier is not None else RuleVerifier())
        self.draft = _provider("draft", draft)
        several = [assistant] if isinstance(assistant, str | Provider) else assistant
        if not isinstance(several, Sequence):
            raise SettingError(_not_a_provider("assistant", assistant))
        if not several:
            raise SettingError("assistant is empty: a fusion needs at least one; the draft alone needs no fusion")
        self.assistants = [_provider("assistant", one) for one in several]
        self.unit: Unit | None = check_unit(unit)
        self.draft_length = None if draft_length is None else check_count("draft_length", draft_length)
        self.max_ahead = None if max_ahead is None else check_count("max_ahead", max_ahead)
        self._stack: AsyncExitStack | None = None
        self._learned: _Learned | None = None
        self._learning = anyio.Lock()

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise FusionClosedError("this fusion is open already; open another one, or share this one")
        async with AsyncExitStack() as stack:
            for provider in [self.draft, *self.assistants]:
                await stack.enter_async_context(provider)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    def __repr__(self) -> str:
        names = ", ".join(provider.name for provider in self.assistants)
        return f"Fusion(draft={self.draft.name}, assistant={names}, verifier={self.verifier!r})"

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        **refused: Any,
    ) -> FusionStream:
        """The answer as it becomes final, token by token::

            async with fusion.stream(prompt) as stream:
                async for token in stream:
                    print(token.text, end="")
            stream.result

        Leaving the block early cancels what is under way at every server.

        Args:
            prompt: text that both models go on from.
            max_tokens: of the answer, its end of sequence included.
            stop: strings; the answer ends before the first one.

        Raises:
            SettingError: e.g. `temperature`: the draft is greedy by definition.
        """
        refuse(refused, Fusion.stream)
        return FusionStream(self, check_prompt(prompt), check_count("max_tokens", max_tokens), check_stop(stop))

    async def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        **refused: Any,
    ) -> FusionResult:
        """The whole answer at once. Arguments and errors are those of `stream`."""
        async with self.stream(prompt, max_tokens=max_tokens, stop=stop, **refused) as stream:
            async for _ in stream:
                pass
        return stream.result

    async def map(
        self,
        prompts: Iterable[str],
        *,
        concurrency: int = 8,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        **refused: Any,
    ) -> AsyncGenerator[FusionResult, None]:
        """The answers to many prompts, in their order, at most `concurrency` under way at once.

        `prompts` is read as it is needed. Leaving the loop cancels what is under way. The first error ends it.
        Arguments and errors are otherwise those of `stream`.
        """
        refuse(refused, Fusion.map)
        check_count("concurrency", concurrency)
        waiting = iter(prompts)
        # Plain tasks, not a task group: a generator may be closed from another task than the one that runs it.
        tasks: list[asyncio.Task[FusionResult]] = []
        try:
            while True:
                while len(tasks) < concurrency and (prompt := next(waiting, None)) is not None:
                    work = self.generate(prompt, max_tokens=max_tokens, stop=stop)
                    tasks.append(asyncio.create_task(work))  # noqa: TID251
                if not tasks:
                    return
                yield await tasks[0]
                tasks.pop(0)
        finally:
            for task in tasks:
                task.cancel()
            await _settled(tasks)

    async def _learn(self) -> _Learned:
        """What the endpoints are, asked once in a fusion's lifetime."""
        if self._stack is None:
            raise FusionClosedError("open the fusion first: async with Fusion(...) as fusion:")
        async with self._learning:
            if self._learned is None:
                providers = [self.draft, *self.assistants]
                infos = [await provider.describe() for provider in providers]
                unit = self.unit if self.unit is not None else await _common_unit(providers, infos)
                self._learned = _Learned(infos, unit)
            return self._learned


class _Learned:
    """What a fusion knows of its servers."""

    def __init__(self, infos: Sequence[ServerInfo], unit: Unit) -> None:
        self.unit: Unit = unit
        count = len(infos) - 1
        self.names = ["assistant"] if count == 1 else [f"assistant {i}" for i in range(1, count + 1)]
        self.draft, *self.assistants = (
            Endpoint.of(name, info) for name, info in zip(["draft", *self.names], infos, strict=True)
        )
        self.warnings = [
            f"{name} does not tell the probability of its end of sequence: no answer's end is ever contested by it"
            for name, info in zip(["draft", *self.names], infos, strict=True)
            if not info.capabilities.end_prob
        ]
        self.takes_ids = infos[0].capabilities.token_ids


class FusionStream:
    """A fused answer under way; made by `Fusion.stream`.

    An async context manager and an async iterator over `FusedToken`. After the last token `result` is there.
    """

    def __init__(self, fusion: Fusion, prompt: str, max_tokens: int, stop: tuple[str, ...]) -> None:
        self._fusion = fusion
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
            await _settled([self._task])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FusedToken:
        if self._task is None:
            raise FusionClosedError("open the stream first: async with fusion.stream(prompt) as stream:")
        token = None if self._ended else await self._tokens.get()
        if token is None:
            self._ended = True
            if self._task.cancelled():
                raise StopAsyncIteration
            self._task.result()  # raises what went wrong
            raise StopAsyncIteration
        return token

    async def _run(self) -> None:
        fusion = self._fusion
        learned = await fusion._learn()
        decoder = CoSD(
            fusion.verifier,
            unit=learned.unit,
            max_tokens=self._max_tokens,
            assistants=len(fusion.assistants),
            stop=[stop.encode() for stop in self._stop],
            draft_length=fusion.draft_length,
            max_ahead=fusion.max_ahead,
        )
        ledgers = [Usage() for _ in range(1 + len(fusion.assistants))]

        def emit(tokens: Sequence[Placed]) -> None:
            if self._first_token is None:
                self._first_token = time.perf_counter() - self._began
            for placed in tokens:
                token = FusedToken.of(placed, learned.names, fusion.verifier)
                self._all.append(token)
                self._tokens.put_nowait(token)

        driver = Driver(decoder, self._prompt, fusion.draft, fusion.assistants, ledgers, emit)
        await driver.run()
        self._result = self._build(learned, decoder, driver, ledgers)

    def _build(self, learned: _Learned, decoder: CoSD, driver: Driver, ledgers: Sequence[Usage]) -> FusionResult:
        assert decoder.finished is not None
        total = time.perf_counter() - self._began
        counts = decoder.counts
        judged = counts.kept + counts.replaced
        fusion = self._fusion
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
            usage={
                name: EndpointUsage.of(ledger) for name, ledger in zip(["draft", *learned.names], ledgers, strict=True)
            },
            timings=Timings(
                total=total,
                first_token=self._first_token,
                per_token=total / len(self._all) if self._all else None,
            ),
            warnings=tuple(learned.warnings + driver.warnings()),
            draft=learned.draft,
            assistants=tuple(learned.assistants),
            settings=Settings(
                verifier=describe_verifier(fusion.verifier),
                unit=learned.unit,
                max_tokens=self._max_tokens,
                stop=self._stop,
                draft_length=fusion.draft_length,
                max_ahead=fusion.max_ahead,
            ),
        )


async def fuse(
    prompt: str,
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    verifier: Verifier | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    stop: str | Sequence[str] | None = None,
    unit: Unit | None = None,
    draft_length: int | None = None,
    max_ahead: int | None = None,
    **refused: Any,
) -> FusionResult:
    """One fused answer; opens and closes a `Fusion` for it. Arguments are those of `Fusion` and `Fusion.stream`."""
    refuse(refused, fuse)
    async with Fusion(
        draft=draft,
        assistant=assistant,
        verifier=verifier,
        unit=unit,
        draft_length=draft_length,
        max_ahead=max_ahead,
    ) as fusion:
        return await fusion.generate(prompt, max_tokens=max_tokens, stop=stop)


fuse_sync = synchronous(fuse, "fuse_sync")


async def _common_unit(providers: Sequence[Provider], infos: Sequence[ServerInfo]) -> Unit:
    """`"token"` if all models encode the test text alike, else, or if one cannot tell, `"word"`."""
    if not all(info.capabilities.tokenize for info in infos):
        return "word"
    first, *others = [await provider.tokenize(TEST_TEXT) for provider in providers]
    if any(other != first for other in others):
        return "word"
    return "token"


async def _settled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits until cancelled tasks have closed what they held, even while being cancelled itself."""
    if tasks:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(tasks)


def _provider(role: str, given: object) -> Provider:
    if isinstance(given, str):
        return connect(given)
    if isinstance(given, type) or not isinstance(given, Provider):
        raise SettingError(_not_a_provider(role, given))
    return given


def _not_a_provider(role: str, given: object) -> str:
    return f"{role} must be a URL or a provider (see cosd_api.connect), not {type(given).__name__}"
