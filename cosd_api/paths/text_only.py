"""Models that accept only text: an assistant's units and a draft's path, from one safe cut to the next.

For each request, a server encodes the whole text again. If the text ends inside a token that the model would write, the
model continues the text as it never would on its own. Therefore the model is asked only at safe cuts
(`is_safe_cut`), and at the beginning and the end of the answer. If the model's tokenizer is known (`connect(url,
tokenizer=...)`), it is also asked at the boundaries of the words into which the tokenizer splits the text. The text
between two of these places is one unit, and the assistant continues the answer from the unit's start.

All offsets are in bytes of the answer. All results depend only on the draft's path.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from cosd_api.alignment import LONGEST
from cosd_api.paths.cuts import FARTHEST, is_safe_cut, look, word_starts
from cosd_api.paths.encoding import DraftPath
from cosd_api.paths.restart import Restart, completes
from cosd_api.paths.units import PathUnit
from cosd_providers.contract import Question, Token, WordEnds
from cosd_providers.text import continues_word, whole

_FOLLOWING = 5  # number of bytes (a space and one character) that show whether a place is a safe cut


def next_text_unit(
    draft: DraftPath, first: int, words: WordEnds | None = None, *, own: bool = False
) -> PathUnit | None:
    """Find the unit that begins with a draft token, for an assistant that accepts only text.

    The unit ends at the next place at which a draft token ends, or at the end of the draft's text. The draft's end of
    sequence is a unit of its own. A token that does not begin at a place is kept without a verdict. Text in which no
    unit ends within 64 characters is also kept without a verdict.

    Every safe cut is a place. If the assistant's tokenizer is known, the start of a word is also a place, provided that
    the tokenizer splits the text before the place into the same words, whether or not it also sees the text after the
    place. This check suffices because the tokenizer encodes each word separately.

    Args:
        draft: the draft model's path.
        first: index of the draft token.
        words: splits a text into words like the assistant's tokenizer; None if the tokenizer is not known.
        own: whether the assistant wrote the word before the unit; if so, the unit begins directly after that word, even
            without a safe cut.

    Returns:
        None if the draft has not written far enough.
    """
    start, text = draft.offset(first), bytes(draft.text)
    if draft.tokens[first].end:
        return PathUnit(first, first + 1, start, start, plain=True)
    safe = _is_place(draft, text, start, words)
    if safe is None:
        return None
    if not (safe or own):
        return PathUnit(first, first + 1, start, draft.offset(first + 1))
    for last in range(first + 1, len(draft.tokens) + 1 - draft.ended):
        end = draft.offset(last)
        if len(text[start:end].decode("utf-8", "surrogateescape")) > FARTHEST:
            return PathUnit(first, last, start, end)
        ends = _is_place(draft, text, end, words) if end > start else False
        if ends is None:
            return None
        if ends:
            return PathUnit(first, last, start, end, cut=not safe, plain=True)
    return None


def _is_place(draft: DraftPath, text: bytes, at: int, words: WordEnds | None) -> bool | None:
    """Test whether an assistant can be asked at an offset; None if the draft has not written far enough to decide."""
    if not at or is_safe_cut(text, at) or (draft.ended and at == len(text)):
        return True
    following = text[at : at + _FOLLOWING]
    open_ = following[:1] in (b"", b" ") and (
        len(following) < 2 or (len(following) < _FOLLOWING and whole(following) < len(following))
    )
    if open_ and not draft.ended:
        return None
    before = text[max(0, at - 4) : at]
    if words is None or whole(before) < len(before) or not word_starts(text, at):
        return False
    seen = look(draft.written, at, ended=draft.ended)
    return None if seen is None else _is_apart(text, at, seen, words)


def _is_apart(text: bytes, at: int, seen: int, words: WordEnds) -> bool:
    """Test whether a tokenizer finds the same words before a place with and without the text after the place."""
    start = max(0, at - 4 * FARTHEST)
    start = next((cut for cut in range(at - 1, start, -1) if is_safe_cut(text, cut)), 0)
    before, more = (text[start:end].decode("utf-8", "surrogateescape") for end in (at, seen))
    return [*words(before)] == [end for end in words(more) if end <= len(before)]


def unit_question(draft: DraftPath, unit: PathUnit) -> Question:
    """The question that asks an assistant for its own text from the start of a unit.

    The question contains the draft's tokens of the unit. To show whether the assistant's word ends with the unit, it
    also contains the draft token after the unit, or a space if no text follows.
    """
    tokens = draft.tokens[unit.first : unit.last]
    data = [one.data for one in tokens if one.data or one.end]  # tokens of the `lead` have no bytes and are left out
    following = draft.tokens[unit.last : unit.last + 1]
    if unit.start < unit.end:
        data.append(following[0].data if following and not following[0].end else b" ")
    return Question(unit.start, tuple(data), word=True)


def spelled(draft: DraftPath, unit: PathUnit, tokens: Sequence[Token]) -> int | None:
    """The number of an assistant's tokens, from the start of a unit, that spell the draft's text.

    If the tokens spell the whole unit, all of them are counted. A token that begins in the unit must match the draft's
    text completely, even beyond the unit, and the first token after the unit must not continue the unit's last word.
    The draft's end of sequence is matched only by the assistant's end of sequence.

    Returns:
        None if the draft has not written far enough.
    """
    at = unit.start
    for count, token in enumerate(tokens):
        if token.end:
            return len(tokens) if draft.tokens[unit.first].end or at >= unit.end > unit.start else count
        if at >= unit.end > unit.start:
            return count if continues_word(bytes(draft.text[max(0, at - 4) : at]), token) else len(tokens)
        mine = bytes(draft.text[at : at + len(token.data)])
        if mine != token.data:
            begun = token.data.startswith(mine) and not draft.ended
            if begun and not draft.over:
                return None
            return len(tokens) if begun else count
        at += len(token.data)
    return len(tokens)


def restart_text(draft: DraftPath, at: int, tokens: Sequence[Token]) -> Restart | None:
    """Compute the path of a draft that accepts only text, after an assistant's word replaces a part of it.

    The word is the shortest run of tokens, from the start of the continuation, that completes a word. If no run of at
    most eight tokens completes a word, the word is the longest run of at most eight tokens that ends with a whole
    character.

    Args:
        draft: the draft model's path.
        at: byte offset of the place in the answer.
        tokens: the assistant's continuation from the place, without an end of sequence.

    Returns:
        The path; `cut` is True unless the word ends at a safe cut. None if none of these tokens ends with a whole
        character.
    """
    text = bytes(draft.text[:at]) + b"".join(token.data for token in tokens)
    ends = [at + size for size in accumulate(len(token.data) for token in tokens[:LONGEST])]
    found = [(count, end) for count, end in enumerate(ends, 1) if whole(text[:end]) == end]
    if not found:
        return None
    count, end = next(((count, end) for count, end in found if completes(tokens, count)), found[-1])
    keep = min(bisect_right(draft.ends, at), len(draft.tokens) - draft.ended)
    return Restart(keep, (None,) * count, tuple(ends[:count]), text[:end], cut=not is_safe_cut(text, end))


def resumed(draft: DraftPath, first: int) -> int | None:
    """The byte offset from which a text-only draft continues; it writes all text after this offset again.

    The offset is the last safe cut after the first `first` tokens. If no safe cut follows these tokens, the offset is
    the end of these tokens, where the last draft started.

    Returns:
        None if the offset lies more than 64 characters back.
    """
    text = bytes(draft.text)
    for count in range(len(draft.tokens), first - 1, -1):
        at = draft.offset(count)
        if len(text[at:].decode("utf-8", "surrogateescape")) > FARTHEST:
            return None
        if is_safe_cut(text, at):
            return at
    return draft.offset(first)
