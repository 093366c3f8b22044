"""The methods that are compared, all of which write the same text.

(a) is the library. (b) and (c) are Algorithm 1 in fixed rounds, written here without the library's engine. In each
round the draft writes K tokens, the assistant is asked about all of them in one request, the tokens before the first
replacement are kept, and the replacement is added. (c) is (b) with K = 1, so it sends one request for each position.
(d) is one model that writes the text alone. All methods use the same providers, so they differ only in the algorithm.
Like the library, they prepare a connection for the next draft during the current one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from cosd_api import Fusion, RuleVerifier
from cosd_api.records import EndpointUsage
from cosd_providers import connect
from cosd_providers.contract import Context, DraftEnd, Proposal, Provider, Question, Ready, Token
from cosd_providers.strategies import Strategy
from cosd_providers.usage import Usage

__all__ = ["METHODS", "Answer", "Method", "algorithm_1", "alone", "fusing", "rounds"]


@dataclass(slots=True)
class Answer:
    """The answer of a method.

    Attributes:
        text: the text.
        tokens: number of tokens.
        replacements: number of replacements.
        first: seconds until the first token is final.
        seconds: duration in seconds.
        drafted: number of tokens from the draft.
        more: further figures from the library's result.
    """

    text: str = ""
    tokens: int = 0
    replacements: int = 0
    first: float = 0.0
    seconds: float = 0.0
    drafted: int = 0
    more: dict[str, Any] = field(default_factory=dict[str, Any])


Write = Callable[[str, int], Awaitable[Answer]]
"""A function that writes the answer to a prompt, up to a given number of tokens."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        name: the name in the tables.
        settings: settings of `Fusion`, used by (a).
        length: the number K of tokens per round, used by (b) and (c).
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    length: int | None = None

    @property
    def alone(self) -> bool:
        """True if one model writes the text alone."""
        return self.name == "d: draft alone"

    def open(self, draft: str, assistant: str) -> AbstractAsyncContextManager[Write]:
        """A writer connected to the two models; for (d), to the same model twice."""
        if self.alone:
            return alone(draft)
        if self.length is not None:
            return rounds(draft, assistant, self.length)
        return fusing(draft, assistant, self.settings)


METHODS = (
    Method("d: draft alone"),
    Method("a: cosd-api"),
    Method("b: K=8", length=8),
    Method("b: K=16", length=16),
    Method("b: K=32", length=32),
    Method("c: one by one", length=1),
)


_PAPER = RuleVerifier.paper()
TOLD = {"assistant_requests", "draft_requests", "iterations"}
"""Fields of the library's result that are reported."""


@asynccontextmanager
async def fusing(draft: str, assistant: str, settings: dict[str, Any]) -> AsyncIterator[Write]:
    """(a): the library, as users call it, with the same rule as the other methods."""
    async with Fusion(draft=draft, assistant=assistant, verifier=_PAPER, unit="token", **settings) as fusion:

        async def write(prompt: str, length: int) -> Answer:
            start, first = time.perf_counter(), 0.0
            async with fusion.stream(prompt, max_tokens=length) as stream:
                async for _ in stream:
                    first = first or time.perf_counter() - start
            seconds, result = time.perf_counter() - start, stream.result
            more: dict[str, Any] = {"usage": {name: usage.model_dump() for name, usage in result.usage.items()}}
            more |= result.model_dump(include=TOLD)
            written = len(result.tokens), result.replacements or 0
            return Answer(result.text, *written, first, seconds, result.drafted_tokens, more)

        yield write


@asynccontextmanager
async def alone(model: str) -> AsyncIterator[Write]:
    """(d): one model writes alone."""
    async with connect(model) as provider:

        async def write(prompt: str, length: int) -> Answer:
            answer, start, data, usage = Answer(), time.perf_counter(), b"", Usage()
            async for item in provider.generate(Context(prompt, b""), max_tokens=length, usage=usage):
                if isinstance(item, Token):
                    answer.first = answer.first or time.perf_counter() - start
                    answer.drafted += 1
                    data += item.data
            answer.seconds = time.perf_counter() - start
            answer.text, answer.tokens, answer.more = data.decode(), answer.drafted, _billed(usage, Usage())
            return answer

        yield write


@asynccontextmanager
async def rounds(
    draft: str, assistant: str, k: int, *, engine: str = "llama.cpp", strategy: Strategy = "list"
) -> AsyncIterator[Write]:
    """(b), or (c) if `k` is 1: Algorithm 1 in fixed rounds, with one request to the assistant per round."""
    asked = connect(assistant, engine=engine, strategy=strategy)
    drafting = connect(draft, engine=engine)
    async with drafting, asked, anyio.create_task_group() as group:

        async def write(prompt: str, length: int) -> Answer:
            return await algorithm_1(group, drafting, asked, prompt, length, k)

        yield write


async def algorithm_1(
    group: TaskGroup, draft: Provider, assistant: Provider, prompt: str, length: int, k: int
) -> Answer:
    """Algorithm 1 in rounds of `k` tokens, each verified by one call of the assistant's `propose`.

    Meanwhile, tasks in `group` prepare connections for the next draft.
    """
    answer, start, usages = Answer(), time.perf_counter(), (Usage(), Usage())
    text, continuation, over = b"", None, False
    while answer.tokens < length and not over:
        limit = min(k, length - answer.tokens)
        tokens, continuation = await _draft(group, draft, prompt, text, limit, continuation, usages[0])
        answer.drafted += len(tokens)
        if not tokens:  # no tokens, because the context is full
            break
        proposals = await _verify(assistant, prompt, text, tokens, usages[1])
        for token, proposal in zip(tokens, proposals, strict=True):
            answer.tokens += 1
            said = proposal.tokens[0] if proposal else token
            if (said.data, said.end) != (token.data, token.end) and _rule(token, said):
                text, over = text + said.data, said.end
                answer.replacements += 1
                continuation = None  # the draft now continues from a text that ends with the assistant's word
                break
            text, over = text + token.data, token.end
        answer.first = answer.first or time.perf_counter() - start
    answer.seconds, answer.text = time.perf_counter() - start, text.decode()
    answer.more = _billed(*usages)
    return answer


async def _draft(
    group: TaskGroup, draft: Provider, prompt: str, text: bytes, limit: int, continuation: Any, usage: Usage
) -> tuple[list[Token], Any]:
    tokens: list[Token] = []
    async for item in draft.generate(Context(prompt, text), max_tokens=limit, continuation=continuation, usage=usage):
        if isinstance(item, DraftEnd):
            continuation = item.continuation
            continue
        if not tokens and isinstance(draft, Ready):  # this draft already has a connection
            group.start_soon(draft.keep_ready)
        tokens.append(item)
    return tokens, continuation


async def _verify(
    assistant: Provider, prompt: str, text: bytes, tokens: list[Token], usage: Usage
) -> list[Proposal | None]:
    questions: list[Question] = []
    for token in tokens:
        questions.append(Question(len(text), (token.data,)))
        text += token.data
    return await assistant.propose(Context(prompt, text), questions, usage=usage)


def _billed(draft: Usage, assistant: Usage) -> dict[str, Any]:
    """Requests and billed tokens, in the form of the library's result."""
    ledgers = {"draft": draft, "assistant": assistant}
    return {"usage": {name: EndpointUsage.of(usage).model_dump() for name, usage in ledgers.items()}}


def _rule(token: Token, said: Token) -> bool:
    assert token.prob is not None and said.prob is not None
    return token.prob < _PAPER.alpha and said.prob > _PAPER.beta * token.prob
