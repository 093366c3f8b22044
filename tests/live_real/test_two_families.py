"""SmolLM2 and Gemma 3 270M, of two tokenizers: a rule that always replaces writes the assistant's own text."""

from __future__ import annotations

import httpx
import pytest

from cosd_api import Fusion, RuleVerifier
from live_real.prompts import PROMPTS
from live_real.test_null_control import say

LENGTH = 24
ALWAYS = RuleVerifier(alpha=1, beta=0)


def written(url: str, prompt: str, *, cache: bool) -> str:
    """The text that a model writes alone."""
    body = {"prompt": prompt, "n_predict": LENGTH, "temperature": 0, "samplers": ["temperature"], "cache_prompt": cache}
    text: str = httpx.post(f"{url}/completion", json=body, timeout=120).json()["content"]
    return text.rstrip("\ufffd")


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.extended)])
@pytest.mark.parametrize("turned", [False, True], ids=["SmolLM2 drafts", "Gemma drafts"])
async def test_the_forced_rule_writes_the_assistants_own_text(draft: str, gemma: str, turned: bool, count: int) -> None:
    """The texts are compared as far as both go; a server that itself writes two texts is not stable there."""
    first, second = (gemma, draft) if turned else (draft, gemma)
    prompts = [f"{prompt}\n" for prompt in PROMPTS[:count]]
    equal, stable, different = 0, 0, list[str]()
    async with Fusion(draft=first, assistant=second, verifier=ALWAYS) as fusion:
        for prompt in prompts:
            own = [written(second, prompt, cache=cache) for cache in (False, True)]
            result = await fusion.generate(prompt, max_tokens=2 * LENGTH)
            assert (result.settings.unit, result.trace.replay()) == ("word", result.text)
            stable += own[0] == own[1]
            if any(_agree(result.text, one) for one in own):
                equal += own[0] == own[1]
            else:
                different.append(f"{prompt!r}: {result.text[:80]!r} instead of {own[0][:80]!r}")
    say("\n".join([f"{equal} of {stable} equal where the server is stable, of {count}", *different]))
    assert equal >= int(0.85 * stable)


def _agree(text: str, own: str) -> bool:
    """Test whether one text begins the other, whose last word may be cut."""
    count = min(len(text), len(own))
    return text[:count] == own[:count]
