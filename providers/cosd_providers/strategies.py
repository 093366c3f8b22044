"""Strategies for asking an assistant about several places in one text, and their counts in the ledger.

With the same model, all strategies give the same answers, but they differ in requests, tokens and time. Each engine
selects a strategy by a fixed rule that is based on measurements (benchmarks/results/finished.md); `strategy=` overrides
the rule.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal

from cosd_providers.contract import Proposal
from cosd_providers.usage import Usage

Strategy = Literal["echo", "list", "singles", "watch"]
"""The kind of request that asks an assistant about several places.

- `"echo"`: one request scores the whole text.
- `"list"`: one request contains a prompt for each place: the text up to that place.
- `"singles"`: each place has a separate request; a few requests are sent at a time.
- `"watch"`: the assistant writes the answer at the same time as the draft, in one stream that shows its choice at each
  place. This strategy needs contexts by ids (`contract.IdContexts`) and a draft to judge; if either is missing, the
  engine's own rule applies.
"""


def checked_strategy(strategy: Strategy | None, able: Iterable[Strategy]) -> Strategy | None:
    """Check and return the strategy that a user has chosen; None means the engine's own rule.

    Raises:
        ValueError: the engine does not offer this strategy.
    """
    if strategy not in (None, *able):
        *others, last = map(repr, able)
        raise ValueError(f"no strategy {strategy!r}; there are {', '.join(others)} and {last}")
    return strategy


def marked(found: Iterable[Proposal | None], strategy: Strategy, *, but: Container[int] = ()) -> list[Proposal | None]:
    """Mark proposals as found by a strategy, unless they are already marked or their place is in `but`."""
    return [
        one if one is None or one.strategy or one.start in but else Proposal(one.start, one.tokens, strategy)
        for one in found
    ]


def counted(found: Iterable[Proposal | None], strategy: Strategy, usage: Usage) -> list[Proposal | None]:
    """Mark proposals as `marked` does, and count them in the ledger."""
    proposals = marked(found, strategy)
    for one in proposals:
        if one is not None and one.strategy is not None:
            usage.answered_by(one.strategy, 1)
    return proposals
