"""The naive reference of a fusion in which some models take text only, written from the definition alone.

It adds to the reference of models that take ids (`reference_paths`). A model that takes text only is asked after a text
that its server encodes together with the prompt, and shows its tokens in whole characters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from naive import reference_paths as by_ids
from naive.reference_paths import FARTHEST, LONGEST, Firing, Model, Span, Written

FEW = 3
"""Raw tokens behind the first one of a character, before a question gives it up."""
END = b""


class Itself:
    """The bytes of tokens that are told apart by their bytes alone."""

    def __getitem__(self, data: bytes) -> bytes:
        return data


class Shown:
    """A draft that takes text only: its path are the bytes of its tokens, the end of sequence has none."""

    tokens: Any = Itself()
    end_ids: Collection[Any] = (END,)

    def __init__(self, model: Model) -> None:
        self.model = model

    def encode(self, text: bytes) -> list[int]:
        """Nobody sees how it encodes a text."""
        raise AssertionError(text)

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """Nobody asks it after ids."""
        raise AssertionError(ids)


def shown(model: Model, context: bytes, *, most: int | None = None) -> Iterator[tuple[bytes, float]]:
    """The continuation of a text by a model, in tokens of whole characters, each as sure as its least sure part.

    It stops behind the end of sequence, or at a character that `most` more raw tokens do not complete.
    """
    ids = model.encode(context.decode("utf-8", "ignore").encode())
    data, prob, parts = b"", 1.0, 0
    while True:
        one, p = by_ids.ranked(model, ids)[0]
        ids.append(one)
        if one in model.end_ids:
            if data:
                yield data, prob
            yield END, p
            return
        data, prob, parts = data + model.tokens[one], min(prob, p), parts + 1
        if by_ids.is_whole(data):
            yield data, prob
            data, prob, parts = b"", 1.0, 0
        elif most is not None and parts > most:
            return


def is_apart(words: Callable[[str], Sequence[str]], text: bytes, at: int, seen: int) -> bool:
    """Test whether the words of a text that is cut at a byte are those before it of one that goes on."""
    before, whole = words(text[:at].decode()), words(text[:seen].decode("utf-8", "ignore"))
    return [*before] == [*whole[: len(before)]]


class TextReference(by_ids.Reference):
    """One answer.

    Args:
        text: the models that take text only: an assistant's index, or `DRAFT`.
        words: of assistants whose tokenizer is known, by index, the words into which it splits a text.
        others: as in `Reference`.
    """

    def __init__(
        self,
        prompt: bytes,
        draft: Model,
        *others: Any,
        text: Collection[int],
        words: Mapping[int, Callable[[str], Sequence[str]]] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        super().__init__(prompt, draft, *others, **settings)
        self.text, self.words = text, words
        if by_ids.DRAFT in text:
            self.draft = Shown(draft)

    def steps(self, path: Sequence[Any]) -> Iterator[tuple[Any, float]]:
        """The draft's tokens behind its path."""
        if not isinstance(self.draft, Shown):
            return super().steps(path)
        return shown(self.draft.model, self.prompt + b"".join(path))

    def judge(self, index: int, written: Written, start: int) -> Firing | None:
        """The first replacement of one assistant from a byte on."""
        if index not in self.text:
            return super().judge(index, written, start)
        data = b"".join(self.draft.tokens[one] for one in written.ids if one not in self.draft.end_ids)
        while True:
            at_end = start == len(data) and written.ended
            if start >= written.bound and not (at_end and written.ends):
                return None
            end = start if at_end else self.end_of_unit(index, written, data, start)
            if end is None:
                quiet = self.quiet(written, start)
                if quiet is None:
                    return None
                start = quiet
                continue
            firing = self.compare(index, written, data, start, abs(end)) if end >= 0 else None
            if firing or at_end:
                return firing
            start = abs(end)

    def end_of_unit(self, index: int, written: Written, data: bytes, start: int) -> int | None:
        """The end of the unit that begins at a byte, negative if it is not judged; None if it is not known."""

        def is_place(at: int) -> bool | None:
            if at == 0 or (written.ended and at == len(data)) or by_ids.is_cut(data, at):
                return True
            begun = data[at:] == b"" or (data[at : at + 1] == b" " and not by_ids.characters(data[at + 1 :]))
            if begun and not written.ended:
                return None
            if index not in self.words or not by_ids.is_whole(data[:at]) or not by_ids.word_starts(data, at):
                return False
            seen = by_ids.two_words(data, at, written.ended)
            return None if seen is None else is_apart(self.words[index], data, at, seen)

        place, ends = is_place(start), [end for end in written.offsets if end > start]
        if place is None:
            return None
        if not place and self.own != (index, start):
            self.fused.unjudged += 1
            return -ends[0]
        for end in ends:
            if len(by_ids.characters(data[start:end])) > FARTHEST:
                self.fused.unjudged += 1
                return -end
            found = is_place(end)
            if found is None:
                return None
            if found:
                self.fused.off_path += not place
                return end
        return None

    def compare(self, index: int, written: Written, data: bytes, start: int, end: int) -> Firing | None:
        """Judge a unit by what the assistant writes from its beginning; without bytes it is the draft's end."""
        own = shown(self.assistants[index], self.prompt + data[:start], most=FEW)
        at, q = start, 1.0
        for piece, prob in own:
            if at >= written.bound and start < end:  # what follows is lookahead
                return None
            if at >= end > start and not by_ids.continues(data[:at], piece, at):
                return None
            mine = data[at : at + len(piece)]
            same = piece == mine or (not written.ended and piece.startswith(mine))
            if piece == END:
                same = start == end
            q = min(q, prob)
            if at < end and same and piece != END:
                at += len(piece)
                if len(mine) < len(piece):
                    return None
                continue
            if (same and at < end) or (same and start == end):
                return None
            last = end if start == end else min(end, max(at + 1, at + len(piece)))
            p = written.probs[-1] if start == end else self.least(written, start, last)
            if not self.fires(start, p, q):
                return None
            pieces, ended = ([], True) if piece == END else self.behind(own, data[:at], piece)
            return self.put(index, written, Span(start, end, [], [], made=False), at, pieces, p, q, ended=ended)
        return None

    def behind(self, own: Iterator[tuple[bytes, float]], before: bytes, first: bytes) -> tuple[list[bytes], bool]:
        """The continuation of an assistant from a token on, its word and two more; and whether it ends there."""
        pieces = [first]
        while True:
            end = by_ids.end_of_word(pieces, before)
            data = before + b"".join(pieces)
            if end is not None and by_ids.look(data, end, False, self.cuts[by_ids.DRAFT]) is not None:
                return pieces, False
            piece, _ = next(own, (END, 0.0))
            if piece == END:
                return pieces, True
            pieces.append(piece)

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
        if not isinstance(self.draft, Shown):
            return super().put(index, written, span, place, pieces, p, q, ended=ended)
        own: Any = written.ids
        data = b"".join(own)
        kept: list[bytes] = [
            one for one, end in zip(own, written.offsets[1:], strict=True) if end <= place and one != END
        ]
        rest = data[sum(map(len, kept)) : place]
        if not pieces:
            path: Any = (*kept, *[rest] * bool(rest))
            return Firing(index, span.start, place, p, q, b"", True, place, path, False, place)
        whole = data[:place] + b"".join(pieces)
        ends = [*accumulate(map(len, pieces[:LONGEST]), initial=place)][1:]
        ends = [end for end in ends if by_ids.is_whole(whole[:end])]
        if not ends:
            return None
        for count in range(1, min(LONGEST, len(pieces)) + 1):
            end = place + sum(map(len, pieces[:count]))
            last = count == len(pieces)
            if end in ends and (last or not by_ids.continues(whole[:end], pieces[count], place)):
                break
        else:
            end = ends[-1]
        if self.spells(written, span, whole[:end], whole, ended=ended):
            self.fused.spelled_alike += 1
            return None
        word, at = list[bytes](), place
        for piece in pieces:
            if at < end:
                word.append(piece)
            at += len(piece)
        word[0] = rest + word[0]
        pairs = enumerate(zip(whole, data, strict=False))
        changed = next((at for at, (one, other) in pairs if one != other), min(len(whole), len(data)))
        path = (*kept, *word)
        return Firing(index, span.start, place, p, q, whole[place:end], False, changed, path, False, span.start)
