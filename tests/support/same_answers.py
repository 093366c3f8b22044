"""The same questions fused over different servers: where do the texts differ, and how close was the call there?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from cosd_api import Fusion, FusionResult, RuleVerifier
from cosd_api.apps.demo.questions import sample
from cosd_api.types import FusedToken
from cosd_providers import Provider

QUESTIONS = [question.prompt for question in sample("mixed", 50, seed=31)]
MAY_DIFFER = 2
"""Answers of 50. Two engines compute in another order: where two words are as good as equal, either may come out."""

LINES: list[str] = []
"""What was compared, in words."""

_RULE = RuleVerifier()


@dataclass(frozen=True)
class Difference:
    """Where two answers to one question part.

    Attributes:
        question: its number.
        position: of the first other token.
        margin: how far the closest decision there is from falling the other way, in probability.
        tokens: what the two have there.
    """

    question: int
    position: int
    margin: float
    tokens: tuple[FusedToken | None, FusedToken | None]

    def __str__(self) -> str:
        shown = " | ".join(
            "nothing"
            if token is None
            else f"{token.text!r} ({token.source}, p={token.draft_prob}, q={token.assistant_prob})"
            for token in self.tokens
        )
        return f"question {self.question}, token {self.position}, margin {self.margin:.2g}: {shown}"


async def fused(draft: str | Provider, assistant: str | Provider, count: int | None = None) -> list[FusionResult]:
    """The answers to all questions, or to the first of them."""
    async with Fusion(draft=draft, assistant=assistant, verifier=_RULE) as fusion:
        return [result async for result in fusion.map(QUESTIONS[:count], concurrency=4, max_tokens=64)]


def differences(ours: list[FusionResult], theirs: list[FusionResult]) -> list[Difference]:
    """The questions whose answers are not the same text."""
    found = []
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if (one.text, one.finish_reason) != (other.text, other.finish_reason):
            pairs = list(zip_longest(one.tokens, other.tokens))
            at = next(n for n, (a, b) in enumerate(pairs) if a is None or b is None or a.text != b.text)
            found.append(Difference(number, at, min(_margin(token) for token in pairs[at]), pairs[at]))
    return found


def _margin(token: FusedToken | None) -> float:
    if token is None or token.draft_prob is None:
        return 1.0
    p, q = token.draft_prob, token.assistant_prob
    return min(abs(p - _RULE.alpha), 1.0 if q is None else abs(q - _RULE.beta * p))


def compared(name: str, ours: list[FusionResult], theirs: list[FusionResult]) -> list[Difference]:
    """The differences; what is found is kept in `LINES`, which the run prints at its end."""
    found = differences(ours, theirs)
    LINES.append(f"{name}: {len(ours) - len(found)} of {len(ours)} texts equal")
    LINES.extend(f"    {difference}" for difference in found)
    return found
