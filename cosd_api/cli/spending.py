"""Expensive answers: before they are generated, a note is printed and a limit is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from anyio import move_on_after

from cosd_api import Fusion
from cosd_api.cli.console import say
from cosd_api.extend import (
    DEFAULT_METHOD,
    DRAFT,
    MEASURED_TOKENS,
    AnswerLimits,
    counted,
    duration,
    expected_time,
    measure_speeds,
)
from cosd_api.types import Estimate
from cosd_providers import Message, ProviderError

__all__ = ["bounded"]

_DEAR = 10
"""An answer is expensive if its expected tokens exceed this multiple of the tokens that the draft alone would bill."""
_BOUND = 10
"""The limit on the billed tokens of an expensive answer, as a multiple of the expected tokens."""
_PATIENCE = 20.0
"""The longest time to spend on measuring the models' speed, in seconds."""


async def bounded(
    fusion: Fusion,
    prompt: str | Sequence[Message],
    limits: AnswerLimits,
    *,
    told: bool = False,
    announce: Callable[[str], None] = say,
) -> AnswerLimits:
    """Limit the billed tokens of an expensive answer, and announce its expected tokens, expected time and limit.

    The limits do not change if the method is CoSD, or if billed tokens are already limited. They do not change either
    if the cost cannot be estimated because a server failed: the answer will then fail with a better message, or
    continue without the failed model. If the method makes no forecast, the note says so, and no limit is set.

    Args:
        fusion: the open fusion that will answer.
        prompt: a text or a conversation.
        limits: the limits of the answer.
        told: whether a note was announced earlier; if so, nothing is measured or announced.
        announce: called with the note, which is one line.

    Returns:
        The limits, including a limit on billed tokens if the answer is expensive.

    Raises:
        SettingError: the prompt or a limit is invalid.
    """
    if fusion.settings.method.name == DEFAULT_METHOD or limits.max_billed_tokens is not None:
        return limits
    with suppress(ProviderError), move_on_after(limits.timeout):
        estimate = await fusion.estimate(prompt, max_tokens=limits.max_tokens)
        if not estimate.forecast:
            if not told:
                announce(f"note: {'; '.join(estimate.assumptions)}. --max-billed-tokens N bounds this answer")
            return limits
        expected = estimate.billed_tokens.expected
        times = expected / (estimate.endpoints[DRAFT].prompt_tokens + limits.max_tokens)
        if times <= _DEAR:
            return limits
        most = _BOUND * expected
        if not told:
            seconds = await _seconds(fusion, prompt, estimate)
            time = ""
            if seconds is not None:
                time = f", and to take about {duration(seconds)} (measured on {MEASURED_TOKENS} tokens of each model)"
            announce(
                f"note: the method {fusion.settings.method.name!r} is expensive: this answer is expected to bill about "
                f"{counted(expected, 'token')}, {times:,.0f} times the draft alone{time}. It stops at {most:,} billed "
                "tokens; --max-billed-tokens N sets another limit"
            )
        return replace(limits, max_billed_tokens=most)
    return limits


async def _seconds(fusion: Fusion, prompt: str | Sequence[Message], estimate: Estimate) -> float | None:
    """Return the expected time of an answer in seconds; None if a model fails, or is too slow to be measured."""
    special = fusion.settings.on_special_tokens
    with suppress(ProviderError), move_on_after(_PATIENCE):
        speeds = await measure_speeds(fusion.endpoints, prompt, on_special_tokens=special)
        return expected_time(estimate.endpoints, speeds, estimate.max_tokens)
    return None
