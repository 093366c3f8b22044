"""Expensive answers: announced before they are generated, and bounded."""

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
"""Multiple of the draft's own bill, above which the expected bill makes an answer expensive."""
_BOUND = 10
"""Multiple of the expected tokens at which an expensive answer stops."""
_PATIENCE = 20.0
"""Seconds for measuring the models' speed."""


async def bounded(
    fusion: Fusion,
    prompt: str | Sequence[Message],
    limits: AnswerLimits,
    *,
    told: bool = False,
    announce: Callable[[str], None] = say,
) -> AnswerLimits:
    """Bound the billed tokens of an expensive answer, and announce it: its tokens, its time and the bound.

    CoSD, and answers with a limit of billed tokens, keep their limits. So does an answer that cannot be estimated: it
    fails with a better message, or continues without the failed model. If the method makes no forecast, the note says
    that nothing bounds its answers.

    Args:
        fusion: the open fusion that is to answer.
        prompt: text or a conversation.
        limits: limits of the answer.
        told: whether a note was announced already; if so, nothing is measured or printed.
        announce: gets the note, one line.

    Returns:
        The limits, with the bound if the answer is expensive.

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
                f"note: the method {fusion.settings.method.name!r} is dear: this answer is expected to bill about "
                f"{counted(expected, 'token')}, {times:,.0f} times the draft alone{time}. It stops at {most:,} billed "
                "tokens; --max-billed-tokens N sets another limit"
            )
        return replace(limits, max_billed_tokens=most)
    return limits


async def _seconds(fusion: Fusion, prompt: str | Sequence[Message], estimate: Estimate) -> float | None:
    """The expected seconds of an answer; None if a model does not answer, or takes long for a few tokens."""
    special = fusion.settings.on_special_tokens
    with suppress(ProviderError), move_on_after(_PATIENCE):
        speeds = await measure_speeds(fusion.endpoints, prompt, on_special_tokens=special)
        return expected_time(estimate.endpoints, speeds, estimate.max_tokens)
    return None
