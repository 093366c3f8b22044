"""Streams split into events anywhere: a busy server puts into one event all that it has written meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import Any, TypeVar

from cosd_providers import Provider, Usage
from cosd_providers.testing import TextModel
from support.asked import draft

_T = TypeVar("_T")


def in_turn() -> TextModel:
    """A model that writes characters of two and of three tokens after "Q", and names what else it might have said."""
    script: list[Any] = [(" a", 0.75), b"\xc3", (b"\xa9", 0.3), b" \xf0", (b"\x9f\x98", 0.5), b"\x80", ("!", 0.5)]
    model = TextModel({"Q": script, "~": ["a", " \u00e9", " b", " c"]})
    own = model.next

    def next_(ids: Sequence[int]) -> list[float]:
        probs = own(ids)
        rest = 1 - sum(probs)
        for data, share in ((b" b", 0.4), (b" c", 0.3)):
            probs[model.tokens.index(data)] += rest * share
        return probs  # type: ignore[no-any-return]

    model.next = next_
    return model


def split(items: Iterable[_T], sizes: Sequence[int]) -> Iterator[list[_T]]:
    """Parts of these sizes, in turn, again and again; the last may be smaller."""
    left = iter(items)
    for size in cycle(sizes):
        part = [*islice(left, size)]
        if not part:
            return
        yield part


def splits(count: int) -> Iterator[tuple[int, ...]]:
    """Every way to split so many items: the sizes of the parts."""
    if not count:
        yield ()
    for first in range(1, count + 1):
        for others in splits(count - first):
            yield (first, *others)


async def check_every_split(server: Any, provider: Provider) -> None:
    """A draft is the same however its stream is split into events: tokens, alternatives, ids and bill.

    Args:
        server: a stand-in in front of `in_turn()`.
        provider: asks it.
    """

    async def drafts() -> list[Any]:
        usage = Usage()
        whole = await draft(provider, alternatives=2, usage=usage)
        cut = [await draft(provider, limit=limit, alternatives=2) for limit in (1, 2, 3)]
        return [whole, cut, usage.requests, usage.prompt_tokens, usage.completion_tokens]

    server.per_event = (1,)
    expected = await drafts()
    assert b"".join(token.data for token in expected[0][:-1]) == " aé 😀!".encode()
    assert any(token.alternatives for token in expected[0][:-1])
    for sizes in splits(8):
        server.per_event = sizes
        assert await drafts() == expected, sizes
