"""Co-LLM by its definition: token by token, each state computed from all ids before the token, on its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cosd_api import CoLLMVerifier
from naive import defer as naive_defer
from naive import reference
from toys.toy_models import Model

States = Callable[[Sequence[int]], Sequence[float]]
"""A model's hidden state after some ids."""


def gate(eta: float = 0.5, bias: float = 0.0, weights: Sequence[float] = (0.0,)) -> CoLLMVerifier:
    """A gate with these weights."""
    return CoLLMVerifier(eta=eta, bias=bias, width=len(weights), weights=tuple(weights))


def deferral(one: CoLLMVerifier, state: Sequence[float]) -> float:
    """The probability of deferral."""
    return 1 / (1 + math.exp(-one.bias - sum(a * b for a, b in zip(one.weights, state, strict=True))))


def naive(
    prompt: bytes,
    draft: Model,
    assistant: Model,
    one: CoLLMVerifier,
    states: States,
    *,
    max_tokens: int,
    stop: Sequence[bytes] = (),
) -> tuple[reference.Fused, list[naive_defer.Place]]:
    """The answer, and what was seen at each of its tokens: as in `defer`, with a gate on the state before the token."""

    def found(_: reference.Tok, __: Sequence[float], before: Sequence[int]) -> float:
        return deferral(one, states(before))

    return naive_defer.by_gate(prompt, draft, assistant, found, one.eta, max_tokens=max_tokens, stop=stop)
