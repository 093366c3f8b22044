"""The state of one probe: its questions, their cost, and the findings."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from cosd_providers.contract import Context, DraftEnd, Provider, ServerInfo, Token
from cosd_providers.engine import no_probs
from cosd_providers.errors import (
    AuthenticationError,
    BudgetError,
    ConnectError,
    InvalidRequestError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    UnsupportedError,
)
from cosd_providers.greedy import TIES
from cosd_providers.probe.report import Line, Value
from cosd_providers.probe_client import ProbeClient, Prompt, RawReply, RawRequest
from cosd_providers.usage import Usage

__all__ = [
    "ASKED",
    "DRAFTED",
    "PROBE_PROMPT",
    "STOPPING",
    "TOO_SHORT",
    "Check",
    "Finding",
    "Inquiry",
    "check",
    "places",
    "reason",
    "text_of",
]

PROBE_PROMPT = "Q: What is the capital of France?\nA:"
"""The default prompt of the short draft."""

DRAFTED = 16
"""Tokens of the short draft, with which other answers are compared."""

ASKED = 6
"""Places of an answer that the probe checks."""

TOO_SHORT = "the answer was too short"

STOPPING = (ConnectError, ProviderTimeoutError, AuthenticationError, RateLimitError, BudgetError)
"""Failures that prove nothing about the server's abilities: they end the probe."""

_DUMP = re.compile(r"\n|\{['\"]")
"""The place where a server's message becomes a dump of data."""

Finding = tuple[Value, str]
"""The value of a line, and the evidence."""


@dataclass
class Inquiry:
    """A provider under examination.

    Attributes:
        provider: the provider, called by the contract.
        info: its description of itself.
        client: an unchecked client of its server; None for a provider that has none.
        prompt: the prompt of the short draft.
        usage: the cost of everything so far.
        lines: the findings, by name.
        first: the server's answer to the first question, at temperature 0.
        draft: a short draft, streamed.
        own: the model's own answer, whose places it judges as an assistant: the draft, or an answer in one piece if
            streams show no probabilities.
        fastest: seconds of the fastest request for one token.
        settings: the options that the server was started with, by its own report.
        short: whether every answer was too short to compare anything with.
    """

    provider: Provider
    info: ServerInfo
    client: ProbeClient | None
    prompt: str
    usage: Usage = field(default_factory=Usage)
    lines: dict[str, Line] = field(default_factory=dict[str, Line])
    first: RawReply = field(default_factory=lambda: RawReply(""))
    draft: list[Token] = field(default_factory=list[Token])
    own: list[Token] = field(default_factory=list[Token])
    fastest: float | None = None
    settings: Mapping[str, int] = field(default_factory=dict[str, int])
    short: bool = False

    def note(self, name: str, value: Value, asked: str, seen: str) -> None:
        """Record a finding; a later note on the same line replaces an earlier one."""
        self.lines[name] = Line(name=name, value=value, asked=asked, seen=seen)

    def value(self, name: str) -> Value:
        """The value of a line; None if it is unknown or missing."""
        return self.lines[name].value if name in self.lines else None

    async def ask(
        self, prompts: Sequence[Prompt], *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[RawReply]:
        """Send one timed request without checks."""
        assert self.client is not None
        began = time.monotonic()
        said = await self.client.send(RawRequest(prompts, limit, top, temperature), self.usage)
        if limit == 1 and len(prompts) == 1:
            self.fastest = min(time.monotonic() - began, self.fastest or math.inf)
        return said

    async def after(self, text: str) -> RawReply:
        """The answer to one text, one token long."""
        return (await self.ask([text]))[0]

    async def drafted(
        self, prompt: str, text: bytes, limit: int, continuation: Any = None, **options: Any
    ) -> tuple[list[Token], DraftEnd]:
        """Run a whole draft, by the contract; `options` go to `generate`.

        Raises:
            UnsupportedError: the endpoint reports no probabilities, so no answer can be compared with the draft.
        """
        if not self.info.capabilities.probs:
            raise no_probs("logprobs", self.info.endpoint)
        tokens: list[Token] = []
        end = DraftEnd("limit")
        stream = self.provider.generate(
            Context(prompt, text), max_tokens=limit, continuation=continuation, usage=self.usage, **options
        )
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, DraftEnd):
                    end = item
                else:
                    tokens.append(item)
        return tokens, end

    async def examine(self, one: Check) -> None:
        """Make one check and record its answer, or the reason why the server gives none.

        Raises:
            ProviderError: the server cannot be reached, or does not accept the key.
        """
        try:
            answer = await one.find(self)
        except STOPPING:
            raise
        except ProviderError as error:
            answer = (one.refused if isinstance(error, one.refusals) else None), reason(error)
        if answer is not None:
            self.note(one.name, answer[0], one.asked, answer[1])


@dataclass(frozen=True, slots=True)
class Check:
    """A question to a server.

    Attributes:
        name: the line that it answers.
        asked: the question, in words.
        find: returns the answer; None if there is nothing to send, or if the answer was recorded already.
        refused: the value of the line if the server refuses the question.
        refusals: the errors that count as a refusal; any other error leaves the line unknown.
    """

    name: str
    asked: str
    find: Callable[[Inquiry], Awaitable[Finding | None]]
    refused: Value = None
    refusals: tuple[type[ProviderError], ...] = (UnsupportedError, InvalidRequestError)


def check(
    name: str, asked: str, *, refused: Value = None, also: tuple[type[ProviderError], ...] = ()
) -> Callable[[Callable[[Inquiry], Awaitable[Finding | None]]], Check]:
    """Make a `Check` of a function.

    Args:
        name: the line that it answers.
        asked: the question, in words.
        refused: the value of the line if the server refuses the question.
        also: further errors that count as a refusal.
    """
    return lambda find: Check(name, asked, find, refused, (UnsupportedError, InvalidRequestError, *also))


def text_of(tokens: Iterable[Token]) -> bytes:
    """The text of some tokens."""
    return b"".join(token.data for token in tokens)


def places(tokens: Sequence[Token]) -> dict[int, tuple[int, Token]]:
    """The byte offset and the token at some places of an answer, by the token's index."""
    starts = [0]
    for token in tokens:
        starts.append(starts[-1] + len(token.data))
    asked = range(0, len(tokens), max(1, len(tokens) // ASKED))[:ASKED]
    return {at: (starts[at], tokens[at]) for at in asked}


def reason(error: ProviderError) -> str:
    """An error's message without endpoint, hint and the data that the server dumped after it."""
    words = str(error.args[0])
    return _DUMP.split(words, maxsplit=1)[0].rstrip(" :;,") or words
