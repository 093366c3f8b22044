"""Models that take text only: an assistant's units and a draft's path, from one safe cut to the next.

A server encodes each text that it receives from scratch. If the text ends inside a token that the model would write,
the model continues as it never would on its own. So the model is asked only at safe cuts (`paths.is_safe_cut`), and at
the beginning and the end of the answer. If its tokenizer is known (`connect(url, tokenizer=...)`), it is also asked at
the boundaries of the words into which the tokenizer splits the text. The text between two such places is one unit, and
the assistant writes its own text from the unit's start.

All offsets are in bytes of the answer. All results depend only on the draft's path.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from cosd_api.alignment import LONGEST
from cosd_api.paths import FARTHEST, DraftPath, PathUnit, Restart, completes, is_safe_cut, look, word_starts
from cosd_providers.contract import Question, Token, WordEnds
from cosd_providers.text import continues_word, whole

_BEHIND = 5  # bytes after a place that show whether it is a safe cut: a space and one character


def next_text_unit(
    draft: DraftPath, first: int, words: WordEnds | None = None, *, own: bool = False
) -> PathUnit | None:
    """Find the unit that begins with a draft token, for an assistant that takes text only.

    The unit ends at the next place at which a draft token ends, or with the draft's text. The draft's end of sequence
    is a unit of its own. A token that does not begin at a place is kept unjudged, as is text in which no unit ends
    within 64 characters.

    Every safe cut is a place. If the assistant's tokenizer is known, the start of a word is also a place if the
    tokenizer splits the text before it into the same words with and without the text after it: each word is encoded by
    itself.

    Args:
        draft: the draft model's path.
        first: index of the draft token.
        words: the assistant's splitting of a text into words, if its tokenizer is known.
        own: whether the assistant wrote the word before the unit; if so, the unit begins here even without a safe cut.

    Returns:
        None if the draft has not written far enough.
    """
    start, text = draft.offset(first), bytes(draft.text)
    if draft.tokens[first].end:
        return PathUnit(first, first + 1, start, start, by_text=True)
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
            return PathUnit(first, last, start, end, cut=not safe, by_text=True)
    return None


def _is_place(draft: DraftPath, text: bytes, at: int, words: WordEnds | None) -> bool | None:
    """Test whether an assistant can be asked at an offset; None if the draft has not written far enough to know."""
    if not at or is_safe_cut(text, at) or (draft.ended and at == len(text)):
        return True
    behind = text[at : at + _BEHIND]
    open_ = behind[:1] in (b"", b" ") and (len(behind) < 2 or (len(behind) < _BEHIND and whole(behind) < len(behind)))
    if open_ and not draft.ended:
        return None
    before = text[max(0, at - 4) : at]
    if words is None or whole(before) < len(before) or not word_starts(text, at):
        return False
    seen = look(draft.written, at, ended=draft.ended)
    return None if seen is None else _is_apart(text, at, seen, words)


def _is_apart(text: bytes, at: int, seen: int, words: WordEnds) -> bool:
    """Test whether a tokenizer finds the same words before a place, whether the text ends there or continues."""
    start = max(0, at - 4 * FARTHEST)
    start = next((cut for cut in range(at - 1, start, -1) if is_safe_cut(text, cut)), 0)
    before, more = (text[start:end].decode("utf-8", "surrogateescape") for end in (at, seen))
    return [*words(before)] == [end for end in words(more) if end <= len(before)]


def unit_question(draft: DraftPath, unit: PathUnit) -> Question:
    """The question to an assistant about a unit, which asks for its own text from the unit's start.

    The question contains the draft's tokens of the unit, and the draft token after it (a space if no text follows),
    which shows whether the assistant's word ends with the unit.
    """
    tokens = draft.tokens[unit.first : unit.last]
    data = [one.data for one in tokens if one.data or one.end]  # leaves out tokens of a lead, which have no bytes
    behind = draft.tokens[unit.last : unit.last + 1]
    if unit.start < unit.end:
        data.append(behind[0].data if behind and not behind[0].end else b" ")
    return Question(unit.start, tuple(data), word=True)


def spelled(draft: DraftPath, unit: PathUnit, tokens: Sequence[Token]) -> int | None:
    """The number of an assistant's tokens, from the start of a unit, that spell the draft's text.

    If the tokens spell the whole unit, all of them count. A token that begins in the unit must match the draft's text
    to its end, even beyond the unit, and the first token after the unit must not continue the unit's last word. Only an
    end of sequence by the assistant matches that of the draft.

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
    """Compute the path of a draft that takes no ids after an assistant's word is put into it.

    The word is the shortest run of at most eight tokens that completes a word. If there is no such run, it is the
    longest run of at most eight tokens that ends between characters.

    Args:
        draft: the draft model's path.
        at: byte offset of the place in the answer.
        tokens: the assistant's continuation from the place, without an end of sequence.

    Returns:
        The path, with `cut` set unless the word ends at a safe cut; None if none of these tokens ends between
        characters.
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
    """The byte offset from which a draft that takes no ids should continue; it writes the text after the offset again.

    The offset is the last safe cut after the first `first` tokens, else the end of these tokens, from which the draft
    was started before.

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
