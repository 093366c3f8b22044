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
"""A method is expensive if its longest answer is expected to bill more than this multiple of the draft's tokens."""
_BOUND = 10
"""The limit on the billed tokens of an answer, as a multiple of the tokens expected for an answer of `max_tokens`."""
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
    """Limit the billed tokens of an answer by an expensive method, and announce its expected tokens and time.

    The length of the answer is unknown. Therefore the note gives the expected cost for each token of a short answer,
    and for each token of the longest one.

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
        most = limits.max_tokens
        longest = await fusion.estimate(prompt, max_tokens=most, length=most)
        if not longest.forecast:
            if not told:
                announce(f"note: {'; '.join(longest.assumptions)}. --max-billed-tokens N bounds this answer")
            return limits
        if _times(longest) <= _DEAR:
            return limits
        bound = _BOUND * longest.billed_tokens.expected
        if not told:
            short = await fusion.estimate(prompt, max_tokens=most, length=min(most, MEASURED_TOKENS))
            seconds = await _seconds(fusion, prompt, short)
            few = counted(round(short.length), "token")
            more = f", and {longest.per_token:,.0f} for each of {most} tokens" if most > short.length else ""
            measured = f"(measured on {MEASURED_TOKENS} tokens of each model)"
            time = "" if seconds is None else f" An answer of {few} takes about {duration(seconds)} {measured}."
            announce(
                f"note: the method {fusion.settings.method.name!r} is expensive: it is expected to bill about "
                f"{short.per_token:,.0f} tokens for each token of an answer of {few}, {_times(short):,.0f} times the "
                f"draft alone{more}.{time} An answer stops at {bound:,} billed tokens; --max-billed-tokens N sets "
                "another limit"
            )
        return replace(limits, max_billed_tokens=bound)
    return limits


def _times(estimate: Estimate) -> float:
    """Return the expected tokens as a multiple of those that the draft alone would bill for the same length."""
    return estimate.billed_tokens.expected / (estimate.endpoints[DRAFT].prompt_tokens + estimate.length)


async def _seconds(fusion: Fusion, prompt: str | Sequence[Message], estimate: Estimate) -> float | None:
    """Return the expected seconds for an answer of the estimate's length; None if a model fails or is too slow."""
    special = fusion.settings.on_special_tokens
    with suppress(ProviderError), move_on_after(_PATIENCE):
        speeds = await measure_speeds(fusion.endpoints, prompt, on_special_tokens=special)
        return expected_time(estimate.endpoints, speeds, estimate.length)
    return None
