"""A fusion of models with the same ids, one place at a time: Algorithm 1 on ids, written from its definition alone.

At each place the draft's most probable id stands, unless an assistant's most probable id after the same ids is another
one and the verifier prefers it. Nothing is encoded, batched, skipped or asked ahead. Nothing of the package is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Model(Protocol):
    """A model: the probabilities of all ids after some ids."""

    def next(self, ids: Sequence[int]) -> Sequence[float]: ...


@dataclass
class Fused:
    """An answer.

    `margins`: for each place the least difference of two numbers by which it was decided.
    """

    ids: list[int] = field(default_factory=list)
    replacements: int = 0
    ties: int = 0
    margins: list[float] = field(default_factory=list)


def fuse(
    models: Sequence[Model],
    prompts: Sequence[Sequence[int]],
    replaces: Callable[[float, float], bool],
    *,
    ends: set[int],
    max_tokens: int,
    tie: float = 0.0,
    bounds: tuple[float, float] | None = None,
) -> Fused:
    """The answer of a draft and its assistants, each with its own prompt; `bounds` are a rule's, for the margins."""
    found = Fused()
    while len(found.ids) < max_tokens:
        lists = [model.next([*prompt, *found.ids]) for model, prompt in zip(models, prompts, strict=True)]
        own, p, margin = _best(lists[0])
        choice, best = own, -math.inf
        for probs in lists[1:]:
            other, q, lead = _best(probs)
            margin = min(margin, lead)
            if bounds:
                margin = min(margin, abs(p - bounds[0]), abs(q - bounds[1] * p))
            if other == own or {other, own} <= ends:
                continue
            if probs[own] == sorted(probs)[-2] and math.log(q) - math.log(probs[own] or 1e-300) <= tie:
                found.ties += 1
            elif replaces(p, q) and q > best:
                choice, best = other, q
        found.margins.append(margin)
        found.replacements += choice != own
        found.ids.append(choice)
        if choice in ends:
            break
    return found


def _best(probs: Sequence[float]) -> tuple[int, float, float]:
    """The most probable id, its probability, and its lead over the second."""
    second, first = sorted(probs)[-2:]
    return list(probs).index(first), first, first - second
