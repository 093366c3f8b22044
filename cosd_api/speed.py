"""The speed of models, measured on a few tokens, and the time of estimated answers at this speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from time import perf_counter

from cosd_api.endpoints import Endpoints
from cosd_api.estimate import EndpointEstimate
from cosd_api.records import DRAFT
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context
from cosd_providers.errors import ContextLengthError
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt
from cosd_providers.usage import Usage

__all__ = ["MEASURED_TOKENS", "Speed", "expected_time", "measure_speeds"]

MEASURED_TOKENS = 16
"""Tokens of the longest request in a measurement of speed."""

_TEXT = "1, 2, 3, 4, 5, 6, 7, 8,"
_MESSAGES = (Message("user", "Count from 1 to 100, with commas."),)
"""Short prompts whose answers no model ends soon."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a model, in seconds. With several requests at the same time it is the time until all are answered.

    Attributes:
        request: of a request of one token, after a short or cached prompt.
        token: of each further token.
        reading: in addition, of a prompt that is in no cache; 0 if that was not measured.
    """

    request: float
    token: float
    reading: float = 0.0

    def time_of(self, cost: EndpointEstimate, max_tokens: int) -> float:
        """The expected seconds of one answer of at most `max_tokens` tokens at this endpoint.

        A request that holds several prompts, as llama.cpp's to score a text, counts once for each prompt. Their number
        comes from the bill, in which each prompt is assumed to have half of the answer after the question.
        """
        written = min(cost.written_tokens, cost.billed_tokens.expected)
        prompts = (cost.billed_tokens.expected - written) / (cost.prompt_tokens + max_tokens / 2)
        requests = max(cost.requests.expected, prompts)
        return requests * self.request + max(0.0, written - requests) * self.token


def expected_time(costs: Mapping[str, EndpointEstimate], speeds: Mapping[str, Speed], max_tokens: int) -> float:
    """The expected seconds of one answer, as if its models worked one after the other; both mappings by endpoint."""
    return sum(speed.time_of(costs[name], max_tokens) for name, speed in speeds.items() if name in costs)


async def measure_speeds(
    endpoints: Endpoints,
    prompt: str | Sequence[Message],
    *,
    at_once: int = 1,
    reading: bool = False,
    on_special_tokens: OnSpecialTokens = "warn",
) -> dict[str, Speed]:
    """Measure the speed of each endpoint, one after the other, on a few tokens: up to 16 in a request.

    Each endpoint generates one token after a short prompt, which opens a connection and lets a server load its model;
    then `at_once` simultaneous requests of one token are timed, and as many of 16 tokens.

    Args:
        endpoints: the servers.
        prompt: one of the prompts to answer; the short prompt has the same form, text or messages.
        at_once: the number of simultaneous requests.
        reading: whether the prompt itself is read, too, and one token generated.
        on_special_tokens: see `Fusion`.

    Returns:
        By endpoint, without the assistants that answers leave out.

    Raises:
        ProviderError: an endpoint failed.
        SettingError: an endpoint has messages of its own, and the prompt is text.
    """
    facts = await endpoints.discover()
    short, facts = await endpoints.turns(_TEXT if isinstance(prompt, str) else _MESSAGES, on_special_tokens, facts)
    long = short
    if reading:
        long, facts = await endpoints.turns(prompt, on_special_tokens, facts)
    found: dict[str, Speed] = {}
    for at, name in enumerate([DRAFT, *endpoints.names]):
        if at - 1 in facts.without:
            continue
        await _timed(short[at], 1)
        read = 0.0
        if reading:
            with suppress(ContextLengthError):  # other prompts may fit
                read, _ = await _timed(long[at], 1)
        request, _ = await _timed(short[at], 1, at_once)
        whole, tokens = await _timed(short[at], MEASURED_TOKENS, at_once)
        token = max(0.0, whole - request) / (tokens - 1) if tokens > 1 else request
        found[name] = Speed(request, token, max(0.0, read - request))
    return found


async def _timed(turn: RenderedPrompt, max_tokens: int, at_once: int = 1) -> tuple[float, float]:
    """The seconds until all of these requests are answered, and the mean number of tokens that they generated."""

    async def ask() -> int:
        usage = Usage()
        stream = turn.provider.generate(Context(turn.prompt), max_tokens=max_tokens, usage=usage)
        async with aclosing(stream):
            async for _ in stream:
                pass
        return usage.completion_tokens

    began = perf_counter()
    tokens = await concurrently([ask] * at_once, at_once)
    return perf_counter() - began, sum(tokens) / at_once
