"""Scripted models and questions whose outcomes are known: who is right alone, and when they are fused by the rule.

The right answer to every question is " r". The models have one tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cosd_api import Example
from cosd_api.apps.comparison.comparing import split
from cosd_providers.testing import ScriptedProvider

KINDS: Mapping[str, tuple[tuple[str, float], tuple[str, float]]] = {
    "both": ((" r", 0.9), (" r", 0.9)),
    "draft": ((" r", 0.9), (" w", 0.7)),
    "fixed": ((" w", 0.2), (" r", 0.8)),
    "spoilt": ((" r", 0.2), (" w", 0.8)),
    "sure": ((" w", 0.9), (" r", 0.8)),
    "surer": ((" w", 0.93), (" r", 0.95)),
    "neither": ((" w", 0.9), (" w", 0.9)),
}
"""The token and its probability that each model writes, by the kind of question: `"sure"` is a draft that is sure and
wrong, in `"surer"` beside an assistant that is surer; `"fixed"` and `"spoilt"` are unsure ones."""

TRIO_KINDS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "all": ((" r", 0.9), (" r", 0.9), (" r", 0.8)),
    "first": ((" w", 0.2), (" r", 0.8), (" w", 0.6)),
    "second": ((" w", 0.2), (" w", 0.6), (" r", 0.7)),
    "surest": ((" w", 0.2), (" v", 0.6), (" r", 0.8)),
    "misled": ((" r", 0.2), (" r", 0.6), (" w", 0.9)),
    "draft": ((" r", 0.9), (" w", 0.9), (" v", 0.6)),
    "none": ((" w", 0.9), (" w", 0.9), (" v", 0.9)),
}
"""The same for a draft and two assistants, of which one may be right alone."""


def examples(test: Sequence[str], held: Sequence[str]) -> dict[str, Example]:
    """Questions by their kinds: those for the test in the order given, and those for development, under other names."""
    made = [Example(prompt=f"Q{at}:", answer=" r") for at in range(len(test) + len(held))]
    development, tests = split(made)
    assert (len(tests), len(development)) == (len(test), len(held))
    found = {f"{at} {kind}": one for at, (kind, one) in enumerate(zip(test, tests, strict=True))}
    return found | {f"held {at} {kind}": one for at, (kind, one) in enumerate(zip(held, development, strict=True))}


def in_turn(kinds: Sequence[str], count: int) -> dict[str, Example]:
    """Questions of these kinds in turn."""
    return {f"{at} {kinds[at % len(kinds)]}": Example(prompt=f"Q{at}:", answer=" r") for at in range(count)}


def pair(asked: Mapping[str, Example], **options: Any) -> tuple[ScriptedProvider, ScriptedProvider]:
    """The draft and the assistant."""
    draft, assistant = _scripted(asked, KINDS, ("small", "large"), options)
    return draft, assistant


def trio(asked: Mapping[str, Example], **options: Any) -> list[ScriptedProvider]:
    """The draft and two assistants."""
    return _scripted(asked, TRIO_KINDS, ("small", "large", "other"), options)


def _scripted(
    asked: Mapping[str, Example],
    kinds: Mapping[str, Sequence[tuple[str, float]]],
    names: Sequence[str],
    options: Mapping[str, Any],
) -> list[ScriptedProvider]:
    found: list[ScriptedProvider] = []
    for model, name in enumerate(names):
        script: dict[str, list[Any]] = {"tokens": sorted({one[0] for kind in kinds.values() for one in kind})}
        for question, example in asked.items():
            assert isinstance(example.prompt, str)
            script[example.prompt] = [kinds[question.split()[-1]][model]]
        found.append(ScriptedProvider.from_texts(script, **{"name": name, **options}))
    return found
