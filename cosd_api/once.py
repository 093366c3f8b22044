"""One fused answer without a `Fusion`: `fuse`, and `fuse_sync` for where there is no `await`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cosd_api.alignment import Unit
from cosd_api.fusion import DEFAULT_MAX_TOKENS, Fusion
from cosd_api.result import FusionResult
from cosd_api.settings import Asking, OnAssistantError, OnBudget, Prompt, refuse
from cosd_api.sync import synchronous
from cosd_api.verification import Verifier
from cosd_providers.contract import Provider
from cosd_providers.messages import OnSpecialTokens


async def fuse(
    prompt: Prompt,
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    verifier: Verifier | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    stop: str | Sequence[str] | None = None,
    unit: Unit | None = None,
    draft_length: int | None = None,
    max_ahead: int | None = None,
    hedge: int = 0,
    in_flight: int = 1,
    batch_wait: float = 0.0,
    ask: Asking = "contestable",
    on_assistant_error: OnAssistantError = "raise",
    on_special_tokens: OnSpecialTokens = "warn",
    timeout: float | None = None,  # noqa: ASYNC109
    max_requests: int | None = None,
    max_billed_tokens: int | None = None,
    on_budget: OnBudget = "raise",
    **refused: Any,
) -> FusionResult:
    """One fused answer; opens and closes a `Fusion` for it. Arguments are those of `Fusion` and `Fusion.stream`."""
    refuse(refused, fuse)
    async with Fusion(
        draft=draft,
        assistant=assistant,
        verifier=verifier,
        unit=unit,
        draft_length=draft_length,
        max_ahead=max_ahead,
        hedge=hedge,
        in_flight=in_flight,
        batch_wait=batch_wait,
        ask=ask,
        on_assistant_error=on_assistant_error,
        on_special_tokens=on_special_tokens,
    ) as fusion:
        return await fusion.generate(
            prompt,
            max_tokens=max_tokens,
            stop=stop,
            timeout=timeout,
            max_requests=max_requests,
            max_billed_tokens=max_billed_tokens,
            on_budget=on_budget,
        )


fuse_sync = synchronous(fuse, "fuse_sync")
