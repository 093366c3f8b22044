"""Expensive answers: before they are generated, a note is printed and a limit is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from anyio import move_on_after

from cosd_api import Fusion
from cosd_api.apps.cli.console import say
from cosd_api.extend import DRAFT
from cosd_api.methods import DEFAULT_METHOD
from cosd_api.settings import AnswerLimits
from cosd_api.types import Estimate
from cosd_providers import Message, ProviderError

__all__ = ["bounded"]

_DEAR = 10
"""A method is expensive if its longest answer is expected to bill more than this multiple of the draft's tokens."""
_BOUND = 10
"""The limit on the billed tokens of an answer, as a multiple of the tokens expected for an answer of `max_tokens`."""


async def bounded(
    fusion: Fusion,
    prompt: str | Sequence[Message],
    limits: AnswerLimits,
    *,
    told: bool = False,
    announce: Callable[[str], None] = say,
) -> AnswerLimits:
    """Limit the billed tokens of an answer by an expensive method, and announce its expected tokens.

    Args:
        fusion: the open fusion that will answer.
        prompt: a text or a conversation.
        limits: the limits of the answer.
        told: whether a note was announced earlier; if so, nothing is announced.
        announce: called with the note, which is one line.

    Returns:
        The limits, including a limit on billed tokens if the answer is expensive. They are unchanged if the method is
        CoSD or makes no forecast, if billed tokens are already limited, and if a server fails: the answer will then
        fail with a better message, or continue without the failed model.

    Raises:
        SettingError: the prompt or a limit is invalid.
    """
    method, most = fusion.settings.method.name, limits.max_tokens
    if method == DEFAULT_METHOD or limits.max_billed_tokens is not None:
        return limits
    with suppress(ProviderError), move_on_after(limits.timeout):
        longest = await fusion.estimate(prompt, max_tokens=most, length=most)
        if not longest.forecast and not told:
            announce(f"note: {'; '.join(longest.assumptions)}. --max-billed-tokens N bounds this answer")
        if not longest.forecast or _times(longest) <= _DEAR:
            return limits
        bound = _BOUND * longest.billed_tokens.expected
        if not told:
            announce(
                f"note: the method {method!r} is expensive: an answer of {most:,} tokens is expected to bill "
                f"{_times(longest):,.0f} times the tokens of the draft alone. It stops at {bound:,} billed tokens; "
                "--max-billed-tokens N sets another limit"
            )
        return replace(limits, max_billed_tokens=bound)
    return limits


def _times(estimate: Estimate) -> float:
    """Return the expected tokens as a multiple of those that the draft alone would bill for the same length."""
    return estimate.billed_tokens.expected / (estimate.endpoints[DRAFT].prompt_tokens + estimate.length)
