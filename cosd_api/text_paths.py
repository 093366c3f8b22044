"""Models that take text only: the units of an assistant and the path of a draft, by safe cuts.

A server encodes each text that it receives again. If the text ends inside a token that the model would write, the model
continues as it never would. So the model is asked only at safe cuts (`paths.is_safe_cut`), and at the beginning and the
end of the answer. If its tokenizer is known (`connect(url, tokenizer=...)`), it is also asked at the boundaries of the
words into which the tokenizer splits the text. The text between two such places is one unit: the assistant continues
from the first of them by itself.

All offsets are in bytes of the answer. Everything is a function of the draft's path alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from cosd_api.alignment import LONGEST
from cosd_api.paths import FARTHEST, DraftPath, PathUnit, Restart, completes, is_safe_cut, look, word_starts
from cosd_providers.contract import Question, Token, WordEnds
from cosd_providers.text import continues_word, whole

_BEHIND = 5  # bytes that show whether a place is a safe cut: a space, and a visible character


def next_text_unit(
    draft: DraftPath, first: int, words: WordEnds | None = None, *, own: bool = False
) -> PathUnit | None:
    """The unit that begins with a draft token, of an assistant that takes text only.

    It ends at the next place at which a draft token ends, or with the draft's text; the draft's end of sequence is a
    unit of its own. A token that begins at no place, and a text longer than 64 characters, is kept unjudged.

    A place is a safe cut. If the assistant's tokenizer is known, a place is also the start of a word before which the
    cut text has the same words as the text with its continuation, for each word is encoded by itself.

    Args:
        draft: the draft model's path.
        first: index of the token.
        words: the assistant's own, if its tokenizer is known.
        own: whether the assistant wrote the word before: then it is asked there after a cut text, safe or not.

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
    """Test whether an assistant can be asked at a place; None if the draft has not written far enough."""
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
    """Test whether a tokenizer makes the same words before a place if the text ends there and if it continues."""
    start = max(0, at - 4 * FARTHEST)
    start = next((cut for cut in range(at - 1, start, -1) if is_safe_cut(text, cut)), 0)
    before, more = (text[start:end].decode("utf-8", "surrogateescape") for end in (at, seen))
    return [*words(before)] == [end for end in words(more) if end <= len(before)]


def unit_question(draft: DraftPath, unit: PathUnit) -> Question:
    """The question to an assistant about a unit: its own text from the unit's start to after the unit.

    The token after the unit, or a space if no token will follow, shows if the assistant's word continues there.
    """
    tokens = draft.tokens[unit.first : unit.last]
    data = [one.data for one in tokens if one.data or one.end]  # tokens of a lead have no bytes
    behind = draft.tokens[unit.last : unit.last + 1]
    if unit.start < unit.end:
        data.append(behind[0].data if behind and not behind[0].end else b" ")
    return Question(unit.start, tuple(data), word=True)


def spelled(draft: DraftPath, unit: PathUnit, tokens: Sequence[Token]) -> int | None:
    """The number of an assistant's tokens, from the beginning of a unit, that spell the draft's text.

    All of the tokens, if they spell the unit: a token that begins in the unit is compared whole, also beyond the unit,
    and the first token after the unit must not continue its word. Only the assistant's own end of sequence spells the
    draft's.

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
    """The path of a draft that takes no ids after an assistant's word was put into it.

    The word is the fewest tokens (eight at most) that complete it, else the most tokens that end between characters.

    Args:
        draft: the draft model's path.
        at: the place: byte offset in the answer.
        tokens: the assistant's continuation from there, without an end of sequence.

    Returns:
        None if no such tokens end between characters. `Restart.cut`: no safe cut follows the word.
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
    """The byte offset from which a draft that takes no ids is asked to continue; it writes the text after it again.

    The offset is the last safe cut, or the end of the first `first` tokens, after which the draft was asked before.

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
