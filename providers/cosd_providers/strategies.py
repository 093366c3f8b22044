"""Strategies for questions to an assistant at several places of one text, and their count in the ledger.

All of them give the same answers on the same model; they differ in requests, tokens and time. Each engine picks one by
a fixed rule, based on measurements (docs/benchmark.md); `strategy=` overrides it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal

from cosd_providers.contract import Proposal
from cosd_providers.usage import Usage

__all__ = ["Strategy", "checked_strategy", "counted", "marked"]

Strategy = Literal["echo", "list", "singles", "watch"]
"""The kind of requests for an assistant's answers at several places.

- `"echo"`: one request scores the whole text.
- `"list"`: one request holds the text up to each place.
- `"singles"`: one request for each place, a few at a time.
- `"watch"`: one stream that writes along, and answers each place that it passes; for an assistant with contexts by ids
  (`contract.IdContexts`) that judges a draft. In other cases the engine's own rule holds.
"""


def checked_strategy(strategy: Strategy | None, able: Iterable[Strategy]) -> Strategy | None:
    """A strategy named by a user; None for the engine's own rule.

    Raises:
        ValueError: the engine has no such strategy.
    """
    if strategy not in (None, *able):
        *others, last = map(repr, able)
        raise ValueError(f"no strategy {strategy!r}; there are {', '.join(others)} and {last}")
    return strategy


def marked(found: Iterable[Proposal | None], way: Strategy, *, but: Container[int] = ()) -> list[Proposal | None]:
    """The same proposals, marked as answered by this strategy: all without a mark, except at the places `but`."""
    return [
        one if one is None or one.strategy or one.start in but else Proposal(one.start, one.tokens, way)
        for one in found
    ]


def counted(found: Iterable[Proposal | None], way: Strategy, usage: Usage) -> list[Proposal | None]:
    """The same proposals, `marked`, and counted in the ledger."""
    proposals = marked(found, way)
    for one in proposals:
        if one is not None and one.strategy is not None:
            usage.answered_by(one.strategy, 1)
    return proposals
