"""Prompts for the live servers: mixed questions of the demonstration, alone or after answered questions.

The bundled models accept at most 512 tokens, so long prompts have about 450 tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

from cosd_api.apps.demo.questions import sample
from cosd_providers import connect
from cosd_providers.contract import Provider

__all__ = ["LONG", "MAX_TOKENS", "padded", "prompts"]

MAX_TOKENS = 48
"""A token limit that exceeds the length of any answer of the small models."""

LONG = 450
"""The length of a long prompt in tokens, for the tokenizer that needs more tokens."""

OTHERS = [
    f"{one.prompt}{one.answer}\n\n" for kind in ("mixed", "sum", "capital", "currency") for one in sample(kind, 10, 11)
]
"""Questions and answers that precede the final question in a long prompt."""


async def prompts(urls: Sequence[str], count: int, *, long: bool, kind: str = "mixed", seed: int = 5) -> list[str]:
    """Questions of one kind, such as `mixed`, which needs two models; with `long`, answered questions come first."""
    asked = [question.prompt for question in sample(kind, count, seed)]
    if not long:
        return asked
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(connect(url)) for url in urls]
        sizes = dict[str, int]()
        return [await padded(prompt, providers, sizes, random.Random(f"{seed}/{prompt}")) for prompt in asked]


async def padded(
    prompt: str, providers: Sequence[Provider], sizes: dict[str, int], rng: random.Random, tokens: int = LONG
) -> str:
    """The prompt, preceded by as many answered questions as fit into `tokens` tokens of every model.

    `sizes` caches the number of tokens of each answered question between calls.
    """
    room, before = tokens, ""
    for other in ["", *rng.sample(OTHERS, len(OTHERS))]:
        text = other or prompt
        if text not in sizes:
            sizes[text] = max([len(await provider.tokenize(text)) for provider in providers])
        room -= sizes[text]
        if room < 0:
            break
        before += other
    return before + prompt
