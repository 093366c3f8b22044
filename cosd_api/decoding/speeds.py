"""The speeds of a fusion's models, measured in the fusion's answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cosd_api.decoding.timeline import RequestSpan

_STREAMS = ("draft", "hedge", "watch")
_FEWEST = 8  # streams with fewer tokens are not counted
_ENOUGH = 64  # number of tokens after which a model's speed counts as known


class Speeds:
    """The mean time that each model needs to write a token, over all answers so far. It affects only the cost."""

    def __init__(self) -> None:
        self._seconds: defaultdict[int, float] = defaultdict(float)
        self._tokens: defaultdict[int, int] = defaultdict(int)

    def note(self, requests: Iterable[RequestSpan]) -> None:
        """Add the requests of a completed answer."""
        for one in requests:
            if one.kind in _STREAMS and one.tokens >= _FEWEST and one.first is not None and one.end is not None:
                self._seconds[one.who] += one.end - one.first
                self._tokens[one.who] += one.tokens - 1

    def slower(self, model: int) -> float | None:
        """The model's time per token divided by the draft's; None until both are known."""
        if min(self._tokens[model], self._tokens[0]) < _ENOUGH or not self._seconds[0]:
            return None
        theirs, own = (self._seconds[one] / self._tokens[one] for one in (model, 0))
        return theirs / own
