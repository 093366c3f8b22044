"""The naive reference of a fusion of models with the same ids, written from the definition alone.

A model is a function: from the ids of the answer so far to its next ids and their probabilities, the most probable
first. Every model is asked at every place, one id at a time, and every probability is known. Nothing is batched,
skipped, drafted ahead or thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

Next = Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]
"""The next ids and their probabilities after the ids of the answer so far, the most probable first."""
Fires = Callable[[int, float, float], bool]
"""Decides by the byte at which the place begins, the draft's probability and the assistant's."""
DRAFT = -1


@dataclass(frozen=True)
class Out:
    """A token of the answer: its id, its bytes, who wrote it, the draft's probability there, and who found a tie."""

    id: int
    data: bytes
    source: int
    p: float
    tied: tuple[int, ...] = ()
    end: bool = False


@dataclass(frozen=True)
class Fused:
    """A whole answer, and all that was `written` for it: the stop string that ended it (`stop`) is cut off."""

    tokens: tuple[Out, ...]
    written: tuple[Out, ...]
    finish_reason: str
    stop: bytes | None = None

    @property
    def text(self) -> bytes:
        """Its bytes."""
        return b"".join(token.data for token in self.tokens)


def fuse(
    draft: Next,
    assistants: Sequence[Next],
    fires: Fires,
    *,
    spell: Callable[[int], bytes],
    ends: Collection[int],
    max_tokens: int,
    stop: Sequence[bytes] = (),
    tie: float = 0.0,
) -> Fused:
    """Fuse one answer: equations 1 to 6 at one place after the other.

    `ends` are the ids that end any of the models; each of them ends the answer, and one agrees with another. `tie` is
    the difference of log probabilities within which an assistant's second choice is as good as its first.
    """
    answer: list[Out] = []
    while True:
        path, at = tuple(out.id for out in answer), sum(len(out.data) for out in answer)
        own, p = draft(path)[0]
        best, tied = None, list[int]()
        for index, assistant in enumerate(assistants):
            (theirs, q), *others = assistant(path)
            if theirs == own or (theirs in ends and own in ends):
                continue
            if others and others[0][0] == own and math.log(q) - math.log(others[0][1]) <= tie:
                tied.append(index)
            elif fires(at, p, q) and (best is None or q > best[2]):
                best = (index, theirs, q)
        source, one = (DRAFT, own) if best is None else best[:2]
        end = one in ends
        answer.append(Out(one, b"" if end else spell(one), source, p, () if best else tuple(tied), end))
        text = b"".join(out.data for out in answer)
        found = min(((text.index(one) + len(one), -len(one), one) for one in stop if one in text), default=None)
        if found:
            return Fused(cut(answer, found[0] + found[1]), tuple(answer), "stop", found[2])
        if end or len(answer) == max_tokens:
            return Fused(tuple(answer), tuple(answer), "stop" if end else "length")


def cut(answer: Sequence[Out], size: int) -> tuple[Out, ...]:
    """The tokens of the first bytes of an answer; one that goes on behind them keeps those before."""
    kept, start = list[Out](), 0
    for out in answer:
        behind = start + len(out.data)
        if start < size or behind <= size:
            kept.append(replace(out, data=out.data[: size - start]))
        start = behind
    return tuple(kept)
