"""The naive reference of a fusion of models with different ids, written from the definition alone.

It lets the draft write its whole answer and the lookahead behind it, walks every unit of every assistant, asks at every
place, and takes the first replacement of all. Everything is encoded whole, every time. Nothing is batched, skipped,
kept or remembered, and nothing happens at the same time.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, count
from typing import Protocol, runtime_checkable

Fires = Callable[[int, float, float], bool]
"""Decides by the byte at which the place begins, the draft's probability and the assistant's."""
LONGEST = 8
"""Tokens of a unit and of a replacement, at most; the unit goes on to a boundary that the assistant has."""
FARTHEST, WITHOUT_SPACES = 64, 32
"""Characters of lookahead, at most, and where none of them is white space. The first also bounds a unit."""
BEHIND = 16
"""Tokens of lookahead behind `max_tokens` or a stop string, at most."""
UNSPACED = ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO")
SYMBOLS = "$+<=>^|~\x7f×÷"
"""A token may hold one of these, or a sign of Latin-1, an arrow or a mathematical sign, and the space behind it."""
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


@runtime_checkable
class Leading(Protocol):
    """A model whose answers begin with white space: its `encode` puts that before a text, and `apart` does not."""

    def apart(self, text: bytes) -> list[int]:
        """The ids of a text within an answer."""
        ...


@dataclass(frozen=True)
class Firing:
    """A replacement: from byte `at`, judged by `p` and `q`, the answer goes on with `text`.

    `ends`: and ends there. `changed` is the first byte that differs from the draft's; `path` are the draft's ids to the
    end of the replacement; those behind byte `shared` are new. `cut`: its own encoding has no boundary there.
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
    shared: int


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


def is_visible(one: str) -> bool:
    """Test whether a character is visible."""
    return one > " " and not one.isspace()


def is_symbol(one: str) -> bool:
    """Test whether a character is a symbol."""
    return one in SYMBOLS or "\x80" <= one <= "\xbf" or "\u2190" <= one <= "\u2bff"


def is_cut(text: bytes, at: int) -> bool:
    """Test whether a byte is a safe cut: one space between two visible characters, of which the first is no symbol."""
    before, behind = characters(text[max(0, at - 4) : at])[-1:], characters(text[at : at + 5])
    if not before or len(behind) < 2 or behind[0] != " ":
        return False
    return is_visible(before) and not is_symbol(before) and is_visible(behind[1])


def all_of(model: Model) -> tuple[bytes, ...]:
    """The bytes of every id of a model; those of a running server are looked up by id."""
    tokens = model.tokens
    return (*tokens.values(),) if isinstance(tokens, Mapping) else (*tokens,)


@cache
def has_words(tokens: tuple[bytes, ...]) -> bool:
    """Test whether no token holds a space that can be a safe cut, be it the token's last byte."""
    return not any(is_cut(one + b"x", at) for one in tokens for at in range(len(one)))


def look(text: bytes, at: int, ended: bool, cuts: bool) -> int | None:
    """The end of the lookahead of a place; None where the draft has not written so far.

    These are two words, or less: if the encoding ends a token at all safe cuts (`cuts`), the first one is enough.
    """
    for cut in range(at, len(text)):
        if cuts and is_cut(text, cut):
            near = cut + 1 + len(characters(text[cut + 1 : cut + 5])[0].encode("utf-8", "surrogateescape"))
            return min(near, two_words(text, at, ended) or near)
    return two_words(text, at, ended)


def two_words(text: bytes, at: int, ended: bool) -> int | None:
    """The end of the lookahead of a place where a token may cross a space."""
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
    probs = [*model.next(ids)]
    best = probs.index(max(probs))
    prob, probs[best] = probs[best], -1.0
    second = probs.index(max(probs))
    return [(best, prob), (second, probs[second])]


def first_stop(text: bytes, stop: Sequence[bytes]) -> tuple[int, bytes] | None:
    """The stop string that ends first, of equals the longest, and where it ends."""
    found = [(text.index(one) + len(one), one) for one in stop if one in text]
    return min(found, key=lambda one: (one[0], -len(one[1])), default=None)


@dataclass
class Written:
    """The draft so far: its settled ids and the others, with the lookahead behind the last place.

    `text` are the bytes of whole characters; the first `limit` tokens and `bound` bytes
    are judged, and the end if `ends`: what follows is lookahead.
    """

    ids: list[int]
    probs: list[float]
    offsets: list[int]
    text: bytes
    ended: bool
    bound: int
    limit: int
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
        contestable: Callable[[int, float], bool] = lambda *_: True,
        max_tokens: int,
        stop: Sequence[bytes] = (),
        tie: float = 0.0,
    ) -> None:
        self.prompt, self.draft, self.assistants, self.fires = prompt, draft, assistants, fires
        self.contestable, self.max_tokens, self.stop, self.tie = contestable, max_tokens, stop, tie
        self.fused = Fused()
        self.cuts = {at: has_words(all_of(one)) for at, one in ((DRAFT, draft), *enumerate(assistants))}

    def fuse(self) -> Fused:
        """The whole answer."""
        path: list[int] = []
        start = 0
        self.own: tuple[int, int] | None = None  # the assistant whose word was put in last, and its end
        while True:
            if ending := self.over(path):
                return ending
            written = self.write(path)
            best: Firing | None = None
            for index in range(len(self.assistants)):
                firing = self.judge(index, written, start)
                if firing and (best is None or self.rank(written, firing) < self.rank(written, best)):
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
            start = sum(len(self.draft.tokens[one]) for one in best.path)
            self.own = (best.assistant, start)

    def rank(self, written: Written, firing: Firing) -> tuple[float, float]:
        """The order of replacements: by the word that they change, then the most confident."""
        data = b"".join(self.draft.tokens[one] for one in written.ids)
        starts, at = [0], 0
        for one in characters(data):
            if word_starts(data, at):
                starts.append(at)
            at += len(one.encode("utf-8", "surrogateescape"))
        starts.append(at)
        return max(start for start in starts if start <= firing.changed), -firing.q

    def over(self, path: Sequence[int]) -> Fused | None:
        """The answer if it is complete with these ids."""
        kept = path[: self.max_tokens]
        text = b"".join(self.draft.tokens[one] for one in kept if one not in self.draft.end_ids)
        found = first_stop(text, self.stop)
        ended = bool(kept) and kept[-1] in self.draft.end_ids
        if found is None and not ended and len(kept) < self.max_tokens and not self.is_full(path):
            return None
        fused = self.fused
        fused.finish_reason = "stop" if found or ended else "length"
        if found:
            fused.stop, text = found[1], text[: found[0] - len(found[1])]
            offsets = bounds(self.draft, kept)
            kept = [one for one, at in zip(kept, offsets, strict=False) if at < len(text)]
        fused.path, fused.text = tuple(kept), text
        return fused

    def is_full(self, path: Sequence[int]) -> bool:
        """Test whether the draft has no room behind a path."""
        return False

    def write(self, path: Sequence[int]) -> Written:
        """The draft's greedy continuation of its path, and lookahead."""
        ids, probs = [*path], [1.0] * len(path)
        steps = self.steps(path)
        while len(ids) < self.max_tokens + BEHIND and not (ids and ids[-1] in self.draft.end_ids):
            step = next(steps, None)
            if step is None:  # its context is full
                break
            ids.append(step[0])
            probs.append(step[1])
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
        else:
            found = None
        ended = ids[-1] in self.draft.end_ids
        text = data
        while not is_whole(text):
            text = text[:-1]
        ends = ended and len(ids) <= self.max_tokens and found is None
        return Written(ids, probs, offsets, text, ended, bound, limit, ends)

    def steps(self, path: Sequence[int]) -> Iterator[tuple[int, float]]:
        """The draft's tokens behind its path, each with its probability."""
        ids = [*self.draft.encode(self.prompt), *path]
        while True:
            one, p = ranked(self.draft, ids)[0]
            ids.append(one)
            yield one, p

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
                quiet = self.quiet(written, start) if self.cuts[index] else None
                if quiet is None:
                    return None
                start = quiet
                continue
            if not span.ids:  # bytes that stand unjudged
                start = span.end
                continue
            start, firing = self.walk(index, written, span)
            if firing:
                return firing

    def ends_of(self, written: Written, start: int) -> list[tuple[int, int]]:
        """The ends of the draft's tokens behind a byte, between characters, each with the number of tokens before."""
        begin = next(at for at, end in enumerate(written.offsets) if end >= start)
        ends = [(at - begin, end) for at, end in enumerate(written.offsets) if start < end <= len(written.text)]
        return [(number, end) for number, end in ends if between_characters(written.text, end)]

    def encoding(self, index: int, written: Written, end: int, cut: int = 0) -> tuple[list[int], list[int]] | None:
        """An assistant's encoding of the text with the lookahead of a place; `cut`: of the text before it, and behind.

        Its ids and boundaries; None where the draft has not written the lookahead.
        """
        assistant, far = self.assistants[index], look(written.text, end, written.ended, self.cuts[index])
        apart = assistant.apart if isinstance(assistant, Leading) else assistant.encode
        if far is None:
            return None
        if not is_text(written.text[:far]):  # bytes that no text has, so that nobody encodes it
            return [], []
        before = assistant.encode(written.text[:cut]) if cut else []
        ids = [*before, *(apart if cut else assistant.encode)(written.text[cut:far])]
        return ids, bounds(assistant, ids)

    def unit(self, index: int, written: Written, start: int) -> Span | None:
        """The unit that begins at a byte; without ids the bytes that stand unjudged; None where the draft is short."""
        aligned: bool | None = None
        for number, end in self.ends_of(written, start):
            found = self.encoding(index, written, end)
            if found is None:
                break
            ids, marks = found
            made = marks != [] and start not in marks and (index, start) == self.own
            if made:
                ids, marks = self.encoding(index, written, end, cut=start) or ([], [])
            if not marks:
                self.fused.unjudged += 1
                return Span(start, end, [], [], made=False)
            aligned = start in marks if aligned is None else aligned
            word = word_starts(written.text, end) or number >= LONGEST
            if end in marks and (word or not aligned):
                if aligned and start in marks:
                    self.fused.off_path += made
                    return Span(start, end, ids, marks, made=made)
                self.fused.unjudged += 1
                return Span(start, end, [], [], made=False)
            long = len(characters(written.text[start:end])) >= FARTHEST
            if long or (number >= LONGEST and not aligned):
                self.fused.off_path += 1
                ids, marks = self.encoding(index, written, end, cut=start) or ([], [])
                return Span(start, end, ids, marks, made=True)
        self.fused.not_ready += 1
        return None

    def quiet(self, written: Written, start: int) -> int | None:
        """The last safe cut up to which nothing is contestable.

        Units behind it are judged though the lookahead of one before is missing.
        """
        found, text = None, written.text
        for at, end, p in zip(written.offsets, written.offsets[1:], written.probs[: written.limit], strict=False):
            if at < start:
                continue
            if self.contestable(at, p):
                break
            if is_cut(text, end):
                found = end
        return found

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
            common = [end for _, end in self.ends_of(written, span.start) if end in span.marks]
            later = min((end for end in common if behind <= end < span.end), default=span.end)
            p = self.least(written, span.start, behind)
            if not self.fires(span.start, p, q):
                asked = any(
                    span.start <= at < span.end and self.contestable(at, p)
                    for at, p in zip(written.offsets, written.probs[: written.limit], strict=False)
                )
                return later if asked else span.end, None
            return span.end, self.replacement(index, written, span, place, span.ids[:number], p, q)
        return span.end, None

    def least(self, written: Written, start: int, end: int) -> float:
        """The least probability of the draft's tokens from a byte on that begin before another; of no lookahead.

        At least the first of them counts: white space of a template is before all bytes.
        """
        pairs = [*zip(written.offsets, written.probs[: written.limit], strict=False)]
        first = next(p for at, p in pairs if at >= start)
        return min([first, *(p for at, p in pairs if start <= at < end)])

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
        if not self.fires(start, p, q):
            return None
        return self.replacement(index, written, Span(start, start, ids, [], made=False), start, ids, p, q)

    def replacement(
        self, index: int, written: Written, span: Span, place: int, context: Sequence[int], p: float, q: float
    ) -> Firing | None:
        """The replacement at a place, or None where it spells what the draft wrote."""
        assistant = self.assistants[index]
        ids = [*assistant.encode(self.prompt), *context]
        tokens, ended = self.continuation(assistant, ids, written.text[:place])
        pieces = [assistant.tokens[one] for one in tokens]
        if any(pieces) or not pieces:
            return self.put(index, written, span, place, [one for one in pieces if one], p, q, ended=ended)
        return None  # white space of a template, and then the end

    def put(
        self,
        index: int,
        written: Written,
        span: Span,
        place: int,
        pieces: Sequence[bytes],
        p: float,
        q: float,
        *,
        ended: bool,
    ) -> Firing | None:
        """The replacement by an assistant's own tokens from a place on; without any it ends there."""
        before, start = written.text[:place], span.start
        if not pieces:
            while not is_text(before):
                before = before[:-1]
            path, shared = self.restart(written, start, before, b"")
            return Firing(index, start, place, p, q, b"", True, place, path, False, shared)
        whole = before + b"".join(pieces)
        while not is_whole(whole):
            whole = whole[:-1]
        if not is_text(whole):  # a character that the draft began, and that the assistant does not complete
            return None
        marks = bounds(self.draft, self.draft.encode(whole))
        chosen, cut = None, False
        for m in range(1, min(LONGEST, len(pieces)) + 1):
            text = before + b"".join(pieces[:m])
            complete = m == len(pieces) or not continues(text, pieces[m], place)
            if len(text) <= len(whole) and between_characters(whole, len(text)) and len(text) in marks and complete:
                chosen = text
                break
        if chosen is None:
            cut = True
            sizes = [len(before + b"".join(pieces[:m])) for m in range(1, min(LONGEST, len(pieces)) + 1)]
            sizes = [size for size in sizes if size <= len(whole) and between_characters(whole, size)]
            if not sizes:
                return None
            chosen = whole[: sizes[-1]]
        if self.spells(written, span, chosen, whole, ended=ended):
            self.fused.spelled_alike += 1
            return None
        pairs = enumerate(zip(whole, written.text, strict=False))
        changed = next((at for at, (one, other) in pairs if one != other), min(len(whole), len(written.text)))
        path, shared = self.restart(written, start, chosen, b"" if cut else whole[len(chosen) :])
        return Firing(index, start, place, p, q, chosen[place:], False, changed, path, cut, shared)

    def spells(self, written: Written, span: Span, chosen: bytes, whole: bytes, *, ended: bool) -> bool:
        """Test whether a replacement, and what follows it in the unit, is what the draft wrote as far as it went."""
        end = max(len(chosen), span.end)
        end = end if ended else min(end, len(whole))
        if written.ended or len(written.text) >= end:
            return written.text[:end] == whole[:end]
        return whole.startswith(written.text)

    def restart(self, written: Written, start: int, text: bytes, behind: bytes) -> tuple[tuple[int, ...], int]:
        """The draft's path to the end of a text, with what stands behind it for lookahead."""
        ids = self.draft.encode(text + behind)
        marks = bounds(self.draft, ids)
        shared = max(at for at in marks if at <= start and at in written.offsets)
        old = written.ids[: written.offsets.index(shared)]
        return (*old, *ids[marks.index(shared) : marks.index(len(text))]), shared

    def continuation(self, assistant: Model, ids: list[int], before: bytes) -> tuple[list[int], bool]:
        """The assistant's own words after `ids`, a whole one and its lookahead; and whether it ends there."""
        tokens: list[int] = []
        for _ in count():
            data = b"".join(assistant.tokens[one] for one in tokens)
            end = end_of_word([assistant.tokens[one] for one in tokens if assistant.tokens[one]], before)
            if end is not None and look(before + data, end, False, self.cuts[DRAFT]) is not None:
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
        if at + 1 == LONGEST or (at + 1 < len(pieces) and not continues(text, pieces[at + 1], len(before))):
            return len(text)
    return None


def continues(text: bytes, piece: bytes, start: int) -> bool:
    """Test whether a token continues the word from `start` on: a letter behind another, or what follows its space."""
    first = characters(piece)[:1]
    if not text[start:].strip() and text.endswith(b" "):
        return True
    return characters(text)[-1:].isalnum() and first.isalnum()


def is_text(data: bytes) -> bool:
    """Test whether bytes are characters."""
    return data.decode("utf-8", "ignore").encode() == data


def is_whole(text: bytes) -> bool:
    """Test whether no character is open at the end of a text."""
    for last in (text[-1:], text[-2:], text[-3:]):
        try:
            last.decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return False
    return True
