"""The probe's notebook: what it asks, what that took, and what was found."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cosd_providers.contract import Provider, ServerInfo, Token
from cosd_providers.errors import (
    AuthenticationError,
    BudgetError,
    ConnectError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
)
from cosd_providers.findings import Prompt, Said, Scoring, Wire
from cosd_providers.greedy import TIES
from cosd_providers.probe.lines import Line, Value
from cosd_providers.usage import Usage

__all__ = ["DRAFTED", "OURS", "PROMPT", "SENTENCE", "TOO_SHORT", "Inquiry", "reason"]

SENTENCE = "The capital of France is Paris, and the capital of Spain is Madrid."
"""A text in which a model is sure at some places and unsure at others."""

PROMPT = "Q: What is the capital of France?\nA:"
"""What the short draft goes on from, where nothing else is given."""

DRAFTED = 16
"""Tokens of the short draft that much is compared with."""

TOO_SHORT = "the answer was too short"

_DUMP = re.compile(r"\n|\{['\"]")
"""Where a server's message becomes a dump of data."""

OURS = (ConnectError, ProviderTimeoutError, AuthenticationError, RateLimitError, BudgetError)
"""Failures that say nothing of what the server can do."""


@dataclass
class Inquiry:
    """One provider under examination.

    Attributes:
        provider: what is asked by the contract.
        info: what it says of itself.
        wire: its server, asked freely; None for a provider that has none.
        prompt: what the short draft goes on from.
        usage: what all of it has cost.
        lines: what was found.
        first: what the server said after `SENTENCE` less its last words, at temperature 0.
        draft: a short draft, streamed.
        own: the model's own answer, at places of which it is asked as an assistant: the draft, or an answer in one
            piece where a stream shows no probabilities.
        scored: how a given text is scored in one request, where that was asked.
        fastest: seconds of the fastest request for one token.
        settings: what the server tells of how it was started.
        short: whether every answer was too short to find anything out with it.
    """

    provider: Provider
    info: ServerInfo
    wire: Wire | None
    prompt: str
    usage: Usage = field(default_factory=Usage)
    lines: list[Line] = field(default_factory=list[Line])
    first: Said | None = None
    draft: list[Token] = field(default_factory=list[Token])
    own: list[Token] = field(default_factory=list[Token])
    scored: Scoring | None = None
    fastest: float | None = None
    settings: Mapping[str, int] = field(default_factory=dict[str, int])
    short: bool = False

    def note(self, name: str, value: Value, asked: str, seen: str) -> None:
        """Writes down what was found; a later word on the same line replaces the earlier."""
        line = Line(name=name, value=value, asked=asked, seen=seen)
        at = next((n for n, other in enumerate(self.lines) if other.name == name), None)
        if at is None:
            self.lines.append(line)
        else:
            self.lines[at] = line

    def value(self, name: str) -> Value:
        """What a line says; None where it is unknown, or not there."""
        return next((line.value for line in self.lines if line.name == name), None)

    async def ask(
        self, prompts: Sequence[Prompt], *, limit: int = 1, top: int = TIES, temperature: float = 0.0
    ) -> list[Said]:
        """One request to the wire, timed."""
        assert self.wire is not None
        began = time.monotonic()
        said = await self.wire.ask(prompts, self.usage, limit=limit, top=top, temperature=temperature)
        took = time.monotonic() - began
        if limit == 1 and len(prompts) == 1:
            self.fastest = min(took, took if self.fastest is None else self.fastest)
        return said

    async def examine(self, name: str, asked: str, question: Callable[[Inquiry], Awaitable[None]]) -> None:
        """Asks one question; what the server cannot be asked becomes the line's reason.

        Raises:
            ProviderError: the server cannot be reached, or does not let us in.
        """
        try:
            await question(self)
        except OURS:
            raise
        except ProviderError as error:
            self.note(name, None, asked, reason(error))


def reason(error: ProviderError) -> str:
    """An error in words, without its endpoint and hint, and without what a server has dumped behind them."""
    words = str(error.args[0])
    return _DUMP.split(words, maxsplit=1)[0].rstrip(" :;,") or words
