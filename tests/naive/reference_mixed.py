"""The naive reference of an answer in which each assistant is read in its own way, written from the definition alone.

It adds to the reference of models that take ids or text: assistants with the draft's ids, a full context of the draft,
probabilities that its server hides, assistants that fail, and who wrote each byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from naive import reference_paths as by_ids
from naive.reference_paths import DRAFT, Firing, Fused, Span, Written
from naive.reference_text import TextReference


class BrokenError(Exception):
    """A model fails after this context, however it is asked."""


@dataclass(frozen=True)
class Ending:
    """A model whose answers end with other ids, too."""

    model: Any
    end_ids: Collection[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class MixedReference(TextReference):
    """One answer.

    Args:
        same: the assistants that have the draft's ids, by index; an id that ends one of them ends the answer.
        room: number of tokens of an answer for which the draft's context has room.
        hides: tests whether the draft's server hides the probability of a token, by the bytes to its end.
        ever: tests whether a token at a byte could be replaced if its probability is not known.
        others: as in `TextReference`.
    """

    def __init__(
        self,
        prompt: bytes,
        draft: Any,
        *others: Any,
        same: Collection[int] = (),
        room: float = math.inf,
        hides: Callable[[bytes], bool] = lambda _: False,
        ever: Callable[[int], bool] = lambda _: True,
        **settings: Any,
    ) -> None:
        super().__init__(prompt, draft, *others, **settings)
        self.same, self.room, self.hides = same, room, hides
        ends = frozenset(self.draft.end_ids).union(*(self.assistants[one].end_ids for one in same))
        self.draft = self.draft if DRAFT in self.text else Ending(draft, ends)
        self.tokenwise = len(same) == len(self.assistants)
        self.hidden = set[int]()
        known = self.contestable

        def contestable(at: int, p: float) -> bool:
            return ever(at) if at in self.hidden else known(at, p)

        self.contestable = contestable
        self.at = 0  # the beginning of the unit that is being judged
        self.writers: list[int] = []
        self.lost: dict[int, int] = {}

    def fuse(self) -> Fused:
        """The whole answer. It sets `writers`, of each byte and the end, and `lost`, where each assistant failed."""
        path, start, self.own = self.begin()
        while True:
            if ending := self.over(path):
                return ending
            written = self.write(path)
            best = self.first(written, start)
            while best is not None and best.q == math.inf:
                self.lost[best.assistant] = best.at
                best = self.first(written, start)
            self.writers += [DRAFT] * (written.offsets[-1] - len(self.writers))
            if best is None:
                ending = self.over(written.ids[: self.max_tokens])
                assert ending is not None
                return ending
            self.fused.firings.append(best)
            path = [*best.path]
            kept = [0]
            for new, old, end in zip(path, written.ids, written.offsets[1:], strict=False):
                if new != old or end > best.at:
                    break
                kept.append(end)
            self.writers[best.at if best.ends else kept[-1] :] = []
            start = sum(len(self.draft.tokens[one]) for one in path)
            self.writers += [best.assistant] * (start - len(self.writers) + best.ends)
            if best.ends:
                path.append(min(self.draft.end_ids))
            self.own = (best.assistant, start)

    def begin(self) -> tuple[list[Any], int, tuple[int, int] | None]:
        """The draft's path, the byte that is judged first, and the assistant whose word ends there."""
        return [], 0, None

    def first(self, written: Written, start: int) -> Firing | None:
        """The first replacement of all assistants, or the first failure, which is surer than any of them."""
        found = list[Firing]()
        for index in range(len(self.assistants)):
            try:
                firing = None if index in self.lost else self.judge(index, written, start)
            except BrokenError:
                firing = Firing(index, self.at, self.at, 0.0, math.inf, b"", False, self.at, (), False, self.at)
            found += [firing] if firing else []
        return min(found, key=lambda one: self.rank(written, one), default=None)

    def rank(self, written: Written, firing: Firing) -> tuple[float, float]:
        """The order of replacements: by the word, or the token if all models have the same ids."""
        return (firing.at, -firing.q) if self.tokenwise else super().rank(written, firing)

    def is_full(self, path: Sequence[Any]) -> bool:
        """Test whether the draft has no room behind a path."""
        return len(path) >= self.room

    def steps(self, path: Sequence[Any]) -> Iterator[tuple[Any, float]]:
        """The draft's tokens behind its path, as far as there is room."""
        for number, step in enumerate(super().steps(path), len(path)):
            if number >= self.room:
                return
            yield step

    def write(self, path: Sequence[Any]) -> Written:
        """The draft's continuation; the probabilities of some tokens are hidden."""
        written = super().write(path)
        data = b"".join(self.draft.tokens[one] for one in written.ids)
        pairs = [*zip(written.ids, written.offsets, written.offsets[1:], strict=False)][len(path) :]
        self.hidden = {at for one, at, end in pairs if one not in self.draft.end_ids and self.hides(data[:end])}
        return written

    def judge(self, index: int, written: Written, start: int) -> Firing | None:
        """The first replacement of one assistant from a byte on: equations 1 and 2 if it has the draft's ids."""
        if index not in self.same:
            return super().judge(index, written, start)
        assistant, ends = self.assistants[index], self.draft.end_ids
        begin, first = self.draft.encode(self.prompt), written.offsets.index(start)
        for number, mine in [*enumerate(written.ids)][first : written.limit]:
            self.at = written.offsets[number]
            if not self.contestable(self.at, written.probs[number]):
                continue
            (best, q), (second, less) = by_ids.ranked(assistant, [*begin, *written.ids[:number]])
            if best == mine or (best in ends and mine in ends):
                continue
            if second == mine and less > 0 and math.log(q) - math.log(less) <= self.tie:
                self.fused.ties += 1
                continue
            if self.fires(self.at, written.probs[number], q):
                ended, path = best in ends, (*written.ids[:number], best)
                data = b"" if ended else self.draft.tokens[best]
                kept = path[:-1] if ended else path
                return Firing(index, self.at, self.at, written.probs[number], q, data, ended, self.at, kept, False, 0)
        return None

    def unit(self, index: int, written: Written, start: int) -> Span | None:
        """The unit that begins at a byte."""
        self.at = start
        return super().unit(index, written, start)

    def walk(self, index: int, written: Written, span: Span) -> tuple[int, Firing | None]:
        """Walk the places of a unit, unless nothing in it could be replaced."""
        tokens = zip(written.offsets, written.probs[: written.limit], strict=False)
        if not any(span.start <= at < span.end and self.contestable(at, p) for at, p in tokens):
            return span.end, None
        return super().walk(index, written, span)

    def judge_end(self, index: int, written: Written, start: int) -> Firing | None:
        """Judge the draft's end of sequence, unless it could not be replaced."""
        self.at = start
        return super().judge_end(index, written, start) if self.contestable(start, written.probs[-1]) else None
