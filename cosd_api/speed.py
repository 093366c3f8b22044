"""The speed of models, measured on a few tokens, and the time that answers are expected to take at this speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter

from cosd_api.endpoints import Endpoints
from cosd_api.estimate import EndpointEstimate
from cosd_api.records import DRAFT
from cosd_providers.contract import Context
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt
from cosd_providers.usage import Usage

__all__ = ["MEASURED_TOKENS", "Speed", "expected_time", "measure_speeds"]

MEASURED_TOKENS = 16
"""Number of tokens in the longest request of a speed measurement."""

_TEXT = "1, 2, 3, 4, 5, 6, 7, 8,"
_MESSAGES = (Message("user", "Count from 1 to 100, with commas."),)
"""A short prompt, as text and as messages, to which any model writes a long answer."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a model, as times in seconds.

    Attributes:
        request: time of a request that writes one token after a short or cached prompt.
        token: time of each further token.
    """

    request: float
    token: float

    def time_of(self, cost: EndpointEstimate, length: float) -> float:
        """The expected time in seconds that one answer of `length` tokens takes at this endpoint.

        If a request contains several prompts, as when llama.cpp scores a text, each prompt counts as one request. The
        number of prompts is estimated from the bill, on the assumption that an average prompt contains the user's
        prompt and half of the answer.
        """
        written = min(cost.written_tokens, cost.billed_tokens.expected)
        prompts = (cost.billed_tokens.expected - written) / (cost.prompt_tokens + length / 2)
        requests = max(cost.requests.expected, prompts)
        return requests * self.request + max(0.0, written - requests) * self.token


def expected_time(costs: Mapping[str, EndpointEstimate], speeds: Mapping[str, Speed], length: float) -> float:
    """The expected seconds for an answer of `length` tokens, by endpoint name, if one model works after the other."""
    return sum(speed.time_of(costs[name], length) for name, speed in speeds.items() if name in costs)


async def measure_speeds(
    endpoints: Endpoints, prompt: str | Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
) -> dict[str, Speed]:
    """Measure the speed of each endpoint, one after the other, with up to 16 tokens per request.

    Each endpoint first generates one token after a short prompt, which opens a connection and lets the server load its
    model. Then a request for one token is timed, followed by a request for 16 tokens.

    Args:
        endpoints: the servers.
        prompt: one of the prompts that will be answered. The short prompt has the same form (text or messages).
        on_special_tokens: see `Fusion`.

    Returns:
        The speeds by endpoint, without those assistants that are currently left out of answers.

    Raises:
        ProviderError: an endpoint failed.
        SettingError: the prompt is text, but an endpoint has messages of its own.
    """
    short = _TEXT if isinstance(prompt, str) else _MESSAGES
    turns, facts = await endpoints.turns(short, on_special_tokens, await endpoints.discover())
    found: dict[str, Speed] = {}
    for at, name in enumerate([DRAFT, *endpoints.names]):
        if at - 1 in facts.without:
            continue
        await _timed(turns[at], 1)
        request, _ = await _timed(turns[at], 1)
        whole, tokens = await _timed(turns[at], MEASURED_TOKENS)
        found[name] = Speed(request, max(0.0, whole - request) / (tokens - 1) if tokens > 1 else request)
    return found


async def _timed(turn: RenderedPrompt, max_tokens: int) -> tuple[float, int]:
    """Time a request; return the seconds and the number of tokens."""
    usage, began = Usage(), perf_counter()
    stream = turn.provider.generate(Context(turn.prompt), max_tokens=max_tokens, usage=usage)
    async with aclosing(stream):
        async for _ in stream:
            pass
    return perf_counter() - began, usage.completion_tokens
