"""Fusions on a machine that is short of processors, simulated to the microsecond: virtual time, and work that takes it.

Two invented models, of which each writes and answers at its own pace whatever the client does, as real servers do; what
a draft has written waits in a buffer until the client reads it. The client is one event loop. What it does takes time:
`token` for each token read, `turn` for each of the turns that a request or an answer takes through the loop. Nothing
depends on the machine that the test runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self
from unittest.mock import patch

import anyio

from benchmarks.invented import WORDS, Said, Speech, prompt_of
from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_providers.contract import Capabilities, Context, DraftEnd, Proposal, Question, ServerInfo, Token
from cosd_providers.messages import RenderedPrompt
from cosd_providers.usage import Usage
from support.virtual_time import VirtualTime

FIRST, RATE, VERIFY = 0.05, 60.0, 0.06
"""Seconds to a draft's first token, its tokens a second, and the seconds of a verdict."""

BEFORE, AFTER = 4, 5
"""Turns of the loop that a request takes until it is sent, and an answer until it is heard."""


@dataclass(frozen=True)
class Client:
    """Costs of the client's work, in seconds of a machine of which it has all.

    Attributes:
        share: of one processor that it gets.
        token: for each token read.
        turn: for each turn of a request.
        takes_ids: whether the draft continues from its own ids.
    """

    share: float = 1.0
    token: float = 0.0004
    turn: float = 0.0001
    takes_ids: bool = True


@dataclass
class Outcome:
    """Results of several fusions.

    Attributes:
        results: theirs.
        written: tokens that the draft's server wrote, read or not.
        seconds: until the last was complete.
    """

    results: list[FusionResult] = field(default_factory=list)
    written: int = 0
    seconds: float = 0.0

    @property
    def waste(self) -> float:
        """Tokens written for each fused one."""
        return self.written / sum(len(result.tokens) for result in self.results)


class Working(VirtualTime):
    """The event loop: its time also passes while the client works."""

    def work(self, seconds: float) -> None:
        """Let time pass."""
        self._clock.now += seconds


class Invented:
    """A model behind a server: a provider."""

    def __init__(self, client: Client, outcome: Outcome, name: str) -> None:
        self.name = name
        self._client, self._outcome = client, outcome
        self._speech = Speech()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def describe(self) -> ServerInfo:
        able = Capabilities(token_ids=self._client.takes_ids, end_prob=True, tokenize=False, score=False, top_k=5)
        return ServerInfo(self.name, "invented", self.name, None, None, able)

    async def render_prompt(self, messages: Any, tools: Any = None) -> RenderedPrompt:
        raise NotImplementedError

    async def generate(
        self, context: Context, *, max_tokens: int, continuation: Any = None, usage: Usage, **_: Any
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        prompt, text = context.prompt, context.text
        del continuation
        usage.requests += 1
        await self._turns(BEFORE)
        loop = _loop()
        due = began = loop.time() + FIRST
        said = self._speech.said("draft", prompt.encode() + text)
        try:
            for item in islice(said, max_tokens):
                if loop.time() < due:
                    await asyncio.sleep(due - loop.time())
                loop.work(self._client.token / self._client.share)
                yield _token(item)
                due += 1 / RATE
            yield DraftEnd("limit", ("ids",) if self._client.takes_ids else None)
        finally:
            passed = loop.time() - began
            self._outcome.written += min(max_tokens, int(passed * RATE) + 1) if passed >= 0 else 0

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, usage: Usage, **_: Any
    ) -> list[Proposal | None]:
        prompt, text = context.prompt, context.text
        assert questions is not None
        usage.requests += 1
        await self._turns(BEFORE)
        await asyncio.sleep(VERIFY)
        await self._turns(AFTER)
        texts = [prompt.encode() + text[: question.start] for question in questions]
        said = [next(self._speech.said("assistant", one)) for one in texts]
        return [Proposal(question.start, (_token(one),)) for question, one in zip(questions, said, strict=True)]

    async def score(self, context: Context, *, usage: Usage, **_: Any) -> list[Token]:
        raise NotImplementedError

    async def tokenize(self, text: str) -> list[Any]:
        raise NotImplementedError

    async def _turns(self, count: int) -> None:
        for _ in range(count):
            _loop().work(self._client.turn / self._client.share)
            await asyncio.sleep(0)


def _token(said: list[Said]) -> Token:
    others = tuple(Token(WORDS[one.id], one.prob) for one in said[1:5])
    return Token(WORDS[said[0].id], said[0].prob, alternatives=others)


def _loop() -> Working:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Working)
    return loop


def outcome(client: Client, *, fusions: int, tokens: int, answers: int = 1, first: int = 0, **tuning: Any) -> Outcome:
    """Run fusions at once to their ends, each of which writes `answers` in a row; `first` some that are left out."""
    found = Outcome()

    async def run() -> None:
        models: list[Any] = [Invented(client, found, name) for name in ("draft", "assistant")]
        settings: dict[str, Any] = {"unit": "token", "verifier": RuleVerifier.paper(), **tuning}
        async with Fusion(draft=models[0], assistant=models[1], **settings) as fusion:

            async def several(start: int, count: int) -> None:
                for seed in range(start, start + count):
                    found.results.append(await fusion.generate(prompt_of(8, seed), max_tokens=tokens))

            await several(-first, first)
            found.results.clear()
            found.written = 0
            began = _loop().time()
            async with anyio.create_task_group() as group:
                for number in range(fusions):
                    group.start_soon(several, number * answers, answers)
            found.seconds = _loop().time() - began

    with asyncio.Runner(loop_factory=Working) as runner:
        loop = runner.get_loop()
        with patch("time.perf_counter", loop.time):
            runner.run(run())
    found.results.sort(key=lambda result: result.text)
    return found
