"""The state of a probe in progress: its questions, their cost and its findings."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from cosd_providers.contract import Context, DraftEnd, Provider, ServerInfo, Token
from cosd_providers.engine import no_probs
from cosd_providers.engines.openai.probe_client import ProbeClient, Prompt, RawReply, RawRequest
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
from cosd_providers.probe.report import LINES, Line, Value
from cosd_providers.same_ids import Vocabulary
from cosd_providers.usage import Usage

PROBE_PROMPT = "Q: What is the capital of France?\nA:"
"""Default prompt for the short draft."""

DRAFTED = 16
"""Number of tokens in the short draft. Other answers are compared with this draft."""

ASKED = 6
"""Maximum number of places in an answer that the probe checks."""

TOO_SHORT = "the answer was too short"

NO_IDS = "it takes no ids, or does not show those of its tokens"

STOPPING = (ConnectError, ProviderTimeoutError, AuthenticationError, RateLimitError, BudgetError)
"""Errors that end the probe, because they reveal nothing about the server's abilities."""

_DUMP = re.compile(r"\n|\{['\"]")
"""The start of a data dump in a server's error message."""

REFUSALS = (UnsupportedError, InvalidRequestError)
"""Errors with which a server refuses a request."""

Finding = tuple[Value, str]
"""The value of a line in the report, and the evidence for it."""


@dataclass
class ProbeRun:
    """A provider that is being probed."""

    provider: Provider
    info: ServerInfo  # the provider's description of itself
    # client that sends requests to the same server without checking the answers; None if the provider has no such
    # client
    client: ProbeClient | None
    prompt: str  # the prompt for the short draft
    usage: Usage = field(default_factory=Usage)  # the cost of all requests so far
    lines: dict[str, Line] = field(default_factory=dict[str, Line])  # the findings, by the name of their line
    # the server's answer to the first question, at temperature 0
    first: RawReply = field(default_factory=lambda: RawReply(""))
    draft: list[Token] = field(default_factory=list[Token])  # the tokens of the short draft
    # the model's own answer, about which the model is asked as an assistant. It is the draft or, if streams show no
    # probabilities, an answer that was not streamed
    own: list[Token] = field(default_factory=list[Token])
    # duration of the fastest request for one token, in seconds; None before the first request
    fastest: float | None = None
    short: bool = False  # whether every answer was too short for a comparison
    # the fingerprint of the model's vocabulary; None if the server accepts or shows no ids
    vocabulary: Vocabulary | None = None

    def note(self, name: str, value: Value, seen: str, asked: str | None = None) -> None:
        """Record a finding, which replaces any earlier finding with the same name."""
        self.lines[name] = Line(name=name, value=value, asked=asked or LINES[name].asked, seen=seen)

    def value(self, name: str) -> Value:
        """Return the value of a line; None if the value is unknown or the line is missing."""
        return self.lines[name].value if name in self.lines else None

    @property
    def no_draft(self) -> str:
        """The reason why there is no draft with which another answer could be compared."""
        return TOO_SHORT if self.short else "there is no draft to compare with"

    @property
    def wire(self) -> ProbeClient:
        """The client, for checks that run only if there is one."""
        assert self.client is not None
        return self.client

    async def ask(
        self, prompts: Sequence[Prompt], *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[RawReply]:
        """Send a request and return its unchecked answers. If it asks for one token, record its duration."""
        began = time.monotonic()
        said = await self.wire.send(RawRequest(prompts, limit, top, temperature), self.usage)
        if limit == 1 and len(prompts) == 1:
            self.fastest = min(time.monotonic() - began, self.fastest or math.inf)
        return said

    async def after(self, text: str) -> RawReply:
        """Ask for one token after a text."""
        return (await self.ask([text]))[0]

    async def drafted(
        self, context: Context, limit: int, continuation: Any = None, **options: Any
    ) -> tuple[list[Token], DraftEnd]:
        """Write a whole draft through the provider's contract; `options` are passed to `generate`.

        Raises:
            UnsupportedError: the endpoint reports no probabilities, so other answers could not be compared with the
                draft.
        """
        if not self.info.capabilities.probs:
            raise no_probs("logprobs", self.info.endpoint)
        stream = self.provider.generate(
            context, max_tokens=limit, continuation=continuation, usage=self.usage, **options
        )
        async with aclosing(stream):
            items = [item async for item in stream]
        ends = [item for item in items if isinstance(item, DraftEnd)]
        return [item for item in items if isinstance(item, Token)], ends[-1] if ends else DraftEnd("limit")

    def spend(self, usage: Usage) -> None:
        """Add the requests and tokens of a separate ledger."""
        self.usage.requests += usage.requests
        self.usage.bill(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    async def examine(self, one: Check) -> None:
        """Run a check, and record its finding, or the reason why there is none.

        Raises:
            ProviderError: an error of `STOPPING`, such as a server that cannot be reached or refuses the key.
        """
        try:
            answer = await one.find(self)
        except STOPPING:
            raise
        except ProviderError as error:
            answer = (one.refused if isinstance(error, REFUSALS) else None), reason(error)
        if answer is not None:
            self.note(one.name, *answer)


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a server, which produces a line of the report."""

    name: str  # the name of the line in `LINES`, which has its question and its words
    # function that returns the finding; None if there is nothing to check, or if it has already recorded its finding
    find: Callable[[ProbeRun], Awaitable[Finding | None]]
    # the value of the line if the server refuses the request. After any other error the value is unknown
    refused: Value = None


def check(name: str, *, refused: Value = None) -> Callable[[Callable[[ProbeRun], Awaitable[Finding | None]]], Check]:
    """Create a decorator that turns a function into the `Check` of a line."""
    return lambda find: Check(name, find, refused)


def text_of(tokens: Iterable[Token]) -> bytes:
    """Join tokens to their text, as bytes."""
    return b"".join(token.data for token in tokens)


def by_start(tokens: Sequence[Token]) -> Iterator[tuple[int, Token]]:
    """Pair each token with the byte offset at which it begins."""
    return zip(accumulate((len(token.data) for token in tokens), initial=0), tokens, strict=False)


def places(tokens: Sequence[Token]) -> dict[int, tuple[int, Token]]:
    """Choose up to `ASKED` places spread over an answer; return the byte offset and token of each, by token index."""
    return dict([*enumerate(by_start(tokens))][:: max(1, len(tokens) // ASKED)][:ASKED])


def reason(error: ProviderError) -> str:
    """Return an error's message, without the endpoint, the hint, and any data that the server appended to it."""
    words = str(error.args[0])
    return _DUMP.split(words, maxsplit=1)[0].rstrip(" :;,") or words
