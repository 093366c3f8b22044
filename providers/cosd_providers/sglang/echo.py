"""A text that SGLang scores: what its model would have said at each token, in one request that reads its cache."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_providers.greedy import Position, prob
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.reading import scored, steps
from cosd_providers.sglang.strings import Strings
from cosd_providers.sglang.wire import Server, Triple
from cosd_providers.usage import Usage

__all__ = ["Echo"]

_Entry = tuple[Triple, list[Triple]]


class Echo:
    """Scores texts.

    Args:
        asking: the server's requests.
        server: what it is.
        strings: what its ids say.
        usage: is billed.
    """

    def __init__(self, asking: Asking, server: Server, strings: Strings, usage: Usage) -> None:
        self._asking = asking
        self._server = server
        self._strings = strings
        self._usage = usage

    async def probs(self, ids: list[int], first: int) -> list[float | None]:
        """The probability of each id from place `first` on, given all before it; the very first one has none."""
        entries, _ = await self._ask(ids, max(first, 1))
        return [*([None] if not first else []), *(prob(own) or 0.0 for (own, _, _), _ in entries)]

    async def positions(self, ids: list[int], first: int, text: bytes) -> list[Position | None]:
        """What the model would have said at each place from `first` on, and after the last one; None where in doubt.

        Args:
            ids: a text as the model reads it.
            first: how many of them stand before the first place, which is between two characters; not 0.
            text: what the ids from there on say.
        """
        entries, last = await self._ask(ids, first)
        own = ids[first:]
        self._strings.note(own, [one or "" for (_, _, one), _ in entries], text.decode("utf-8", "replace"))
        runs = await self._strings.walk(own)
        best = [_best(top) for _, top in entries] + [last]
        await self._strings.know((*run, one[0]) for run, one in zip(runs, best, strict=True) if one is not None)
        return [
            None if one is None else Position(self._strings.choice(run, *one))
            for run, one in zip(runs, best, strict=True)
        ]

    async def _ask(self, ids: list[int], first: int) -> tuple[list[_Entry], tuple[int, float] | None]:
        """The prompt's tokens from place `first` on, and the most probable one after them, where it is one.

        The server tells the probability of a token from what it computed at the one before it. All before that one
        may come from its cache.
        """
        if first >= len(ids):
            return [], None
        [answer] = await self._asking.batch(self._server, [ids], 1, self._usage, logprob_start_len=first - 1)
        endpoint = self._server.info.endpoint
        [step] = steps(answer, endpoint)
        return scored(answer, ids, first, endpoint), (step.id, step.prob) if len(step.tied) == 1 else None


def _best(top: Sequence[Triple]) -> tuple[int, float] | None:
    """The most probable token; None where there are several, or none."""
    best = max((value for value, _, _ in top if value is not None), default=None)
    first = [token_id for value, token_id, _ in top if value == best]
    value = prob(best)
    return None if value is None or len(first) != 1 else (first[0], value)
