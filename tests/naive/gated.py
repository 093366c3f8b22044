"""The gated mixture, word for word as it is defined: the distribution whose greedy decoding is Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Next = Callable[[Sequence[int]], Sequence[float]]
"""A model: the probability of every token after some ids."""


def gated(
    draft: Next, assistants: Sequence[Next], replaces: Callable[[float, float], bool], ids: Sequence[int]
) -> tuple[Next, int]:
    """The model whose distribution counts after `ids`, and its greedy choice: the definition, word for word."""
    p = draft(ids)
    mine = p.index(max(p))
    firing: list[tuple[float, Next, int]] = []
    for assistant in assistants:
        q = assistant(ids)
        theirs = mine if q[mine] == max(q) else q.index(max(q))
        if theirs != mine and replaces(max(p), max(q)):
            firing.append((max(q), assistant, theirs))
    if not firing:
        return draft, mine
    surest = max(q for q, _, _ in firing)
    return next((model, choice) for q, model, choice in firing if q == surest)
