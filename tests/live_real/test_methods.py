"""Methods over a real model with itself: by ids they write what it writes alone, and more often than by text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cosd_api import Fusion
from cosd_providers import ForwardingProvider, ServerInfo, connect
from live_real.alone import Alone
from live_real.prompts import PROMPTS
from live_real.test_null_control import say
from support.method_files import AT

LENGTH = 64
SOME = PROMPTS[::8]


class TextOnly(ForwardingProvider):
    """Takes no ids, as most servers."""

    async def describe(self) -> ServerInfo:
        info = await super().describe()
        return replace(info, capabilities=replace(info.capabilities, ids=False))


async def equal(draft: str, assistant: str, alone: dict[str, Alone], method: str, *, ids: bool) -> int:
    """The number of answers that are the beginning of what the model writes alone, or all of it."""
    models = [connect(url) if ids else TextOnly(connect(url)) for url in (draft, assistant)]
    more: dict[str, Any] = {"unit": "token"} if method == "average" else {}
    count = 0
    async with Fusion(draft=models[0], assistant=models[1], method=method, **more) as fusion:
        for prompt in SOME:
            result = await fusion.generate([{"role": "user", "content": prompt}], max_tokens=LENGTH)
            assert result.settings.contexts == ("ids" if ids else "text")
            own = alone[prompt].text
            count += own.startswith(result.text) or result.text.startswith(own)
    return count


@pytest.mark.parametrize("method", ["cool", "average", "safe"])
async def test_the_model_with_itself(draft: str, assistant: str, alone: dict[str, Alone], method: str) -> None:
    by_ids, by_text = [await equal(draft, assistant, alone, method, ids=ids) for ids in (True, False)]
    say(f"{method}: {by_ids} of {len(SOME)} equal by ids, {by_text} by text")
    assert by_ids >= by_text
    assert by_ids >= len(SOME) - 1, "near ties alone may make a difference"


async def test_a_sample_is_the_models_own_draw(draft: str, assistant: str) -> None:
    """A vote takes one of the samples whole: nothing of it was encoded again."""
    async with Fusion(draft=draft, assistant=assistant, method=AT["switch"]) as fusion:
        result = await fusion.generate([{"role": "user", "content": SOME[0]}], max_tokens=LENGTH, seed=1)
    assert result.settings.contexts == "ids"
    assert result.text in [one.text for segment in result.segments for one in segment.candidates]
