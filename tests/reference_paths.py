"""The naive reference of a fusion of models with different ids, written from the definition alone.

It lets the draft write its whole answer and the lookahead behind it, walks every unit of every assistant, asks at every
place, and takes the first replacement of all. Everything is encoded whole, every time. Nothing is batched, skipped,
kept or remembered, and nothing happens at the same time.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Protocol

Fires = Callable[[int, float, float], bool]
"""Decides by the byte at which the place begins, the draft's probability and the assistant's."""
LONGEST = 8
"""Tokens of a unit and of a replacement, at most; the unit goes on to a boundary that the assistant has."""
FARTHEST, WITHOUT_SPACES = 64, 32
"""Characters of lookahead, at most, and where none of them is white space. The first also bounds a unit."""
BEHIND = 16
"""Tokens of lookahead behind `max_tokens` or a stop string, at most."""
UNSPACED = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO")
DRAFT = -1


class Model(Protocol):
    """A model behind its prompt: `tokens` are the bytes of every id."""

    @property
    def tokens(self) -> Sequence[bytes]: ...

    @property
    def end_ids(self) -> Collection[int]: ...

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        ...

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after others."""
        ...


@dataclass(frozen=True)
class Firing:
    """A replacement: from byte `at`, judged by `p` and `q`, the text up to `end` is `text`; `cut`: no boundary there.

    `changed` is the first byte that differs from the draft's; `path` are the draft's ids to the end of the replacement.
    """

    assistant: int
    start: int
    at: int
    p: float
    q: float
    text: bytes
    ends: bool
    changed: int
    path: tuple[int, ...]
    cut: bool


@dataclass
class Fused:
    """An answer: the draft's path, its text without a stop string, and what was counted on the way.

    `unjudged` are the bytes that no assistant judged for want of a boundary or of lookahead, by assistant; `off_path`
    the units that were asked after a cut text.
    """

    path: tuple[int, ...] = ()
    text: bytes = b""
    finish_reason: str = ""
    stop: bytes | None = None
    firings: list[Firing] = field(default_factory=list[Firing])
    ties: int = 0
    off_path: int = 0
    unjudged: int = 0
    not_ready: int = 0
    spelled_alike: int = 0


def characters(data: bytes) -> str:
    """The characters of `data`; each byte that is none is one."""
    return data.decode("utf-8", "surrogateescape")


def between_characters(data: bytes, at: int) -> bool:
    """Test whether `data` ends, or a character begins, at a byte."""
    return at == len(data) or data[at] & 0xC0 != 0x80


def look(text: bytes, at: int, ended: bool) -> int | None:
    """The end of the lookahead of a place; None where the draft has not written so far."""
    seen, starts, size = "", 0, at
    for one in characters(text[at:]):
        size += len(one.encode("utf-8", "surrogateescape"))
        starts += not one.isspace() and seen[-1:].isspace()
        seen += one
        if starts == 2 or len(seen) == FARTHEST:
            return size
        if len(seen) == WITHOUT_SPACES and not any(known.isspace() for known in seen):
            return size
    return len(text) if ended else None


def word_starts(text: bytes, at: int) -> bool:
    """Test whether a word begins at a byte: white space, or what follows it, or a script without spaces, or the end."""
    if at == len(text):
        return True
    one = characters(text[at:])[0]
    return one.isspace() or characters(text[:at])[-1:].isspace() or unicodedata.name(one, "").startswith(UNSPACED)


def bounds(model: Model, ids: Sequence[int]) -> list[int]:
    """The offset before every id, and behind the last."""
    return [0, *accumulate(len(model.tokens[one]) for one in ids)]


def ranked(model: Model, ids: Sequence[int]) -> list[tuple[int, float]]:
    """The two most probable ids; of equals the first."""
    probs = model.next(ids)
    return sorted(enumerate(probs), key=lambda one: (-one[1], one[0]))[:2]


def first_stop(text: bytes, stop: Sequence[bytes]) -> tuple[int, bytes] | None:
    """The stop string that ends first, of equals the longest, and where it ends."""
    found = [(text.index(one) + len(one), one) for one in stop if one in text]
    return min(found, key=lambda one: (one[0], -len(one[1])), default=None)


@dataclass
class Written:
    """What the draft wrote: its settled ids and the others, with the lookahead behind the last place.

    `text` are the bytes of whole characters; `bound` is the first byte that is not judged; the end is, if `ends`.
    """

    ids: list[int]
    probs: list[float]
    offsets: list[int]
    text: bytes
    ended: bool
    bound: int
    ends: bool


@dataclass
class Span:
    """A unit: `ids` is the assistant's encoding, `marks` its boundaries, and `made` a start that was made one."""

    start: int
    end: int
    ids: list[int]
    marks: list[int]
    made: bool


class Reference:
    """One answer. A model's own ids of the prompt stand before its path and never merge with it."""

    def __init__(
        self,
        prompt: bytes,
        draft: Model,
        assistants: Sequence[Model],
        fires: Fires,
        *,
        max_tokens: int,
        stop: Sequence[bytes] = (),
        tie: float = 0.0,
    ) -> None:
        self.prompt, self.draft, self.assistants, self.fires = prompt, draft, assistants, fires
        self.max_tokens, self.stop, self.tie = max_tokens, stop, tie
        self.fused = Fused()

    def fuse(self) -> Fused:
        """The whole answer."""
        path: list[int] = []
        starts = [0] * len(self.assistants)
        done = [False] * len(self.assistants)
        while True:
            if ending := self.over(path):
                return ending
            written = self.write(path)
            best: Firing | None = None
            for index in range(len(self.assistants)):
                firing = self.judge(index, written, starts[index])
                if firing and (best is None or (firing.changed, -firing.q) < (best.changed, -best.q)):
                    best = firing
            if best is None:
                ids = written.ids[: self.max_tokens]
                ending = self.over(ids)
                if ending is None:
                    raise AssertionError("an answer ends")
                return ending
            self.fused.firings.append(best)
            path = [*best.path]
            if best.ends:
                path.append(min(self.draft.end_ids))
            starts = [sum(len(self.draft.tokens[one]) for one in best.path)] * len(self.assistants)
            done = [best.ends] * len(self.assistants)

    def over(self, path: Sequence[int]) -> Fused | None:
        """The answer if it is complete with these ids."""
        kept = path[: self.max_tokens]
        text = b"".join(self.draft.tokens[one] for one in kept if one not in self.draft.end_ids)
        found = first_stop(text, self.stop)
        ended = bool(kept) and kept[-1] in self.draft.end_ids
        if found is None and not ended and len(kept) < self.max_tokens:
            return None
        fused = self.fused
        fused.finish_reason = "stop" if found or ended else "length"
        if found:
            fused.stop, text = found[1], text[: found[0] - len(found[1])]
            offsets = bounds(self.draft, kept)
            kept = [one for one, at in zip(kept, offsets, strict=False) if at < len(text)]
        fused.path, fused.text = tuple(kept), text
        return fused

    def write(self, path: Sequence[int]) -> Written:
        """The draft's greedy continuation of its path, and lookahead."""
        ids, probs = [*path], [1.0] * len(path)
        begin = self.draft.encode(self.prompt)
        while len(ids) < self.max_tokens + BEHIND and not (ids and ids[-1] in self.draft.end_ids):
            one, p = ranked(self.draft, [*begin, *ids])[0]
            ids.append(one)
            probs.append(p)
        offsets = bounds(self.draft, ids)
        data = b"".join(self.draft.tokens[one] for one in ids)
        limit = self.max_tokens
        bound = offsets[min(limit, len(ids))]
        found = first_stop(data, self.stop)
        if found and found[0] <= bound:
            bound = found[0]
            limit = next(at for at, end in enumerate(offsets) if end >= bound)
            del ids[limit + BEHIND :], probs[limit + BEHIND :]
            offsets, data = offsets[: len(ids) + 1], data[: offsets[len(ids)]]
            found = (bound, b"")
        else:
            found = None
        ended = ids[-1] in self.draft.end_ids
        text = data
        while text and not between_characters(text + b"\x80", len(text)) and not is_whole(text):
            text = text[:-1]
        ends = ended and len(ids) <= self.max_tokens and found is None
        return Written(ids, probs, offsets, text, ended, bound, ends)

    def judge(self, index: int, written: Written, start: int) -> Firing | None:
        """The first replacement of one assistant from a byte on."""
        while True:
            at_end = start == len(written.text) and written.ended
            if start >= written.bound and not (at_end and written.ends):
                return None
            if at_end:
                return self.judge_end(index, written, start)
            span = self.unit(index, written, start)
            if span is None:
                return None
            if not span.ids:  # bytes that stand unjudged
                start = span.end
                continue
            start, firing = self.walk(index, written, span)
            if firing:
                return firing

    def ends_of(self, written: Written, start: int) -> list[int]:
        """The ends of the draft's tokens behind a byte, between characters."""
        ends = (end for end in written.offsets if start < end <= len(written.text))
        return [end for end in dict.fromkeys(ends) if between_characters(written.text, end)]

    def unit(self, index: int, written: Written, start: int) -> Span | None:
        """The unit that begins at a byte; without ids the bytes that stand unjudged; None where the draft is short."""
        text, assistant = written.text, self.assistants[index]
        ends = self.ends_of(written, start)

        def encoded(end: int, *, made: bool) -> tuple[list[int], list[int]] | None:
            far = look(text, end, written.ended)
            if far is None:
                return None
            parts = [text[:start], text[start:far]] if made else [text[:far]]
            ids = [one for part in parts for one in assistant.encode(part)]
            return ids, bounds(assistant, ids)

        def near(end: int) -> bool:
            return len(characters(text[start:end])) <= FARTHEST

        first = encoded(ends[0], made=False) if ends else None
        if first is None:
            self.fused.not_ready += 1
            return None
        made = False
        if start not in first[1]:
            for end in ends[:LONGEST]:
                if not near(end):
                    break
                found = encoded(end, made=False)
                if found is None:
                    self.fused.not_ready += 1
                    return None
                if end in found[1]:
                    self.fused.unjudged += 1
                    return Span(start, end, [], [], False)
            made = True
        while True:
            for number, end in enumerate(ends, 1):
                if not near(end):
                    break
                found = encoded(end, made=made)
                if found is None:
                    self.fused.not_ready += 1
                    return None
                ids, marks = found
                if end in marks and start in marks and (word_starts(text, end) or number >= LONGEST):
                    self.fused.off_path += made
                    return Span(start, end, ids, marks, made)
            else:
                self.fused.not_ready += 1
                return None
            if made:
                raise AssertionError("no boundary at all")
            made = True

    def walk(self, index: int, written: Written, span: Span) -> tuple[int, Firing | None]:
        """Walk the places of a unit: where the next unit begins, and the replacement."""
        assistant, begin = self.assistants[index], self.assistants[index].encode(self.prompt)
        q = 1.0
        for number, place in enumerate(span.marks[:-1]):
            if not span.start <= place < min(span.end, written.bound):
                continue
            own = span.ids[number]
            context = [*begin, *span.ids[:number]]
            (best, prob), (second, less) = ranked(assistant, context)
            q = min(q, prob)
            if best == own:
                continue
            if second == own and less > 0 and math.log(prob) - math.log(less) <= self.tie:
                self.fused.ties += 1
                continue
            behind = span.marks[number + 1]
            later = [end for end in self.ends_of(written, span.start) if end >= behind and end in span.marks]
            p = self.least(written, span.start, behind)
            if not self.fires(place, p, q):
                return later[0], None
            firing = self.replacement(index, written, span.start, place, span.ids[:number], p, q)
            if firing is None:
                self.fused.spelled_alike += 1
                return later[0], None
            return later[0], firing
        return span.end, None

    def least(self, written: Written, start: int, end: int) -> float:
        """The least probability of the draft's tokens from a byte on that begin before another."""
        pairs = zip(written.offsets, written.probs, strict=False)
        return min((p for at, p in pairs if start <= at < end), default=1.0)

    def judge_end(self, index: int, written: Written, start: int) -> Firing | None:
        """Judge the draft's end of sequence."""
        assistant = self.assistants[index]
        ids = assistant.encode(written.text)
        context = [*assistant.encode(self.prompt), *ids]
        (best, q), (second, less) = ranked(assistant, context)
        if best in assistant.end_ids:
            return None
        if second in assistant.end_ids and less > 0 and math.log(q) - math.log(less) <= self.tie:
            self.fused.ties += 1
            return None
        p = written.probs[-1]
        return self.replacement(index, written, start, start, ids, p, q) if self.fires(start, p, q) else None

    def replacement(
        self, index: int, written: Written, start: int, place: int, context: Sequence[int], p: float, q: float
    ) -> Firing | None:
        """The replacement at a place, or None where it spells what the draft wrote."""
        assistant, before = self.assistants[index], written.text[:place]
        tokens, ended = self.continuation(assistant, [*assistant.encode(self.prompt), *context], before)
        pieces = [assistant.tokens[one] for one in tokens]
        if not tokens:  # it ends here
            path = self.restart(written, start, before, b"")[0]
            return Firing(index, start, place, p, q, b"", True, place, path, False)
        whole = before + b"".join(pieces)
        marks = bounds(self.draft, self.draft.encode(whole))
        chosen, cut = None, False
        for m in range(1, min(LONGEST, len(pieces)) + 1):
            text = before + b"".join(pieces[:m])
            complete = m == len(pieces) or not continues(text, pieces[m])
            if between_characters(whole, len(text)) and len(text) in marks and complete:
                chosen = text
                break
        if chosen is None:
            cut = True
            sizes = [len(before + b"".join(pieces[:m])) for m in range(1, min(LONGEST, len(pieces)) + 1)]
            sizes = [size for size in sizes if between_characters(whole, size)]
            if not sizes:
                return None
            chosen = whole[: sizes[-1]]
        if written.text.startswith(chosen) and not (len(written.text) == place):
            return None
        changed = next((at for at, (one, other) in enumerate(zip(chosen, written.text, strict=False)) if one != other),
                       min(len(chosen), len(written.text)))
        path, _ = self.restart(written, start, chosen, b"" if cut else whole[len(chosen) :])
        return Firing(index, start, place, p, q, chosen[place:], False, changed, path, cut)

    def restart(self, written: Written, start: int, text: bytes, behind: bytes) -> tuple[tuple[int, ...], int]:
        """The draft's path to the end of a text, with what stands behind it for lookahead."""
        ids = self.draft.encode(text + behind)
        marks = bounds(self.draft, ids)
        shared = max(at for at in marks if at <= start and at in written.offsets)
        old = written.ids[: written.offsets.index(shared)]
        return (*old, *ids[marks.index(shared) : marks.index(len(text))]), shared

    def continuation(self, assistant: Model, ids: list[int], before: bytes) -> tuple[list[int], bool]:
        """The assistant's own words after `ids`: a whole one and its lookahead."""
        tokens: list[int] = []
        for _ in count():
            data = b"".join(assistant.tokens[one] for one in tokens)
            end = end_of_word([assistant.tokens[one] for one in tokens], before)
            if end is not None and look(before + data, end, False) is not None:
                return tokens, False
            one, _ = ranked(assistant, [*ids, *tokens])[0]
            if one in assistant.end_ids:
                return tokens, True
            tokens.append(one)
        raise AssertionError


def end_of_word(pieces: Sequence[bytes], before: bytes) -> int | None:
    """The end of the first word of some tokens: where no letter follows another, or behind eight tokens."""
    text = before
    for at, piece in enumerate(pieces):
        text += piece
        if at + 1 == LONGEST or (at + 1 < len(pieces) and not continues(text, pieces[at + 1])):
            return len(text)
    return None


def continues(text: bytes, piece: bytes) -> bool:
    """Test whether a token continues the last word of a text: a letter or digit directly after another."""
    return characters(text)[-1:].isalnum() and characters(piece)[:1].isalnum()


def is_whole(text: bytes) -> bool:
    """Test whether no character is open at the end of a text."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return True
