"""Every method asks each model after its own ids: a model fused with itself writes what it writes alone."""

from __future__ import annotations

from typing import Any

import pytest

from cosd_api import FusionResult, fuse
from cosd_providers.testing import ScriptedProvider
from on_paths import PROMPT, TEXTS, Reciter

GREEDY: dict[str, dict[str, Any]] = {
    "average": {"method": "average"},
    "cool": {"method": "cool"},
    "cool-align": {"method": "cool-align"},
    "cool+rerank": {"method": "cool+rerank"},
    "rerank": {"method": "rerank"},
    "adafuse": {"method": "adafuse"},
    "safe": {"method": "safe"},
    "chared": {"method": "chared"},
    "nudging": {"method": "nudging"},
    "route": {"method": "route"},
    "cascade": {"method": "cascade"},
    "cosd": {"method": "cosd"},
    "speculative": {"method": "speculative"},
}
DRAWN: dict[str, dict[str, Any]] = {
    "mixture": {"method": "mixture"},
    "switch": {"method": "switch"},
    "speculative": {"method": "speculative", "temperature": 1},
    "cosd": {"method": "cosd", "temperature": 1},
}
ONE_TOKENIZER = ("average", "mixture", "speculative", "cosd-1")


async def fused(providers: list[ScriptedProvider], **settings: Any) -> FusionResult:
    draft, *assistants = providers
    limits = {"max_tokens": 120}
    return await fuse(PROMPT, draft=draft, assistant=assistants, **limits, **settings)


def check(result: FusionResult, providers: list[ScriptedProvider], text: str) -> None:
    assert result.text == text
    assert result.settings.contexts == "ids"
    assert "".join(token.text for token in result.tokens) == text
    assert b"".join(token.data for token in result.tokens) == text.encode()
    assert result.trace.replay() == result.text
    for provider in providers:
        for call in provider.calls:
            if call.kind in ("propose", "score"):
                assert call.prompt == "", "the prompt alone is scored as text"
            else:
                contexts = call.contexts or ()
                assert call.ids is not None or contexts
                assert all(context.ids is not None for context in contexts)


def models(text: str, prob: float, *, same: bool, **options: Any) -> list[ScriptedProvider]:
    first = Reciter(text, prob)
    others = [first, first] if same else [Reciter(text, prob, shuffled=1), Reciter(text, prob, shuffled=2)]
    return [ScriptedProvider(one, ids=True, name=f"m{at}", **options) for at, one in enumerate((first, *others))][:2]


@pytest.mark.parametrize("text", TEXTS, ids=["paragraphs", "list", "code", "others"])
@pytest.mark.parametrize("hides", [False, True], ids=["shown", "hidden"])
@pytest.mark.parametrize("settings", GREEDY.values(), ids=GREEDY)
async def test_with_itself(settings: dict[str, Any], text: str, hides: bool) -> None:
    providers = models(text, 0.7, same=True, hides_parts=hides)
    check(await fused(providers, **settings), providers, text)


@pytest.mark.parametrize("text", TEXTS, ids=["paragraphs", "list", "code", "others"])
@pytest.mark.parametrize("settings", DRAWN.values(), ids=DRAWN)
async def test_draws_with_itself(settings: dict[str, Any], text: str) -> None:
    providers = models(text, 1.0, same=True)
    check(await fused(providers, **settings), providers, text)


@pytest.mark.parametrize("text", TEXTS, ids=["paragraphs", "list", "code", "others"])
@pytest.mark.parametrize(
    "settings", [one for name, one in GREEDY.items() if name not in ("average", "speculative", "cosd")]
)
async def test_with_a_copy_whose_ids_are_others(settings: dict[str, Any], text: str) -> None:
    providers = models(text, 0.7, same=False)
    check(await fused(providers, **settings), providers, text)
