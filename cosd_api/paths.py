r"""Paths of models with different ids through one answer: encodings, lookahead, units, and restarts after a word.

A model is asked after ids: after its own encoding of the answer, never after a text that ends at the place. Models have
often not seen the encoding of a text's end: GPT-2's tokenizer makes two tokens of the new lines in `"end.\n\nThe"`, but
one of new lines that end a text. So a place is encoded together with the text that the draft wrote after it (`look`),
and only the boundaries of the assistant's own tokens are places (equation 3 of the paper, made exact).

All offsets are in bytes of the answer. Everything is a function of the draft's path alone, independent of earlier
requests.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from cosd_api.alignment import LONGEST, is_unspaced
from cosd_providers.contract import Piece, Token
from cosd_providers.text import continues_word, first_character, whole

FARTHEST = 64
"""Characters of lookahead, and of a unit, at most."""
_WITHOUT_SPACES = 32  # characters of lookahead if none of them is white space
_WINDOW = 4 * FARTHEST  # bytes that hold as many characters
_SPACES = (
    rb"\xc2[\x85\xa0]",
    rb"\xe1\x9a\x80",
    rb"\xe2\x80[\x80-\x8a\xa8\xa9\xaf]",
    rb"\xe2\x81\x9f",
    rb"\xe3\x80\x80",
)
"""White space beyond ASCII, in UTF-8."""
_VISIBLE = (  # decided by the first bytes of a character
    rb"[\x21-\x7f\xc3-\xe0\xe4-\xff]|\xc2[^\x85\xa0]|\xe1(?:[^\x9a]|\x9a[^\x80])"
    rb"|\xe2(?:[^\x80\x81]|\x80[^\x80-\x8a\xa8\xa9\xaf]|\x81[^\x9f])|\xe3(?:[^\x80]|\x80[^\x80])"
)
_SAFE_CUT = re.compile(
    rb"(?<=[^\s\x00-\x20])" + b"".join(b"(?<!" + one + b")" for one in _SPACES) + b"(?= (?:" + _VISIBLE + b"))",
    re.DOTALL,
)
_INSIDE = bytes(range(0x80, 0xC0))  # bytes inside a character

Encode = Callable[[str], Awaitable[Sequence[Piece]]]
"""A model's encoding of a response that begins with a text; see `contract.IdContexts.encode`."""


def look(text: bytes, at: int, *, ended: bool) -> int | None:
    """The end of the lookahead of a place: no text after it can change the tokens before the place.

    The lookahead ends after the first character of the second word that begins after the place, after 64 characters (32
    without any white space), or with the answer.

    Args:
        text: the draft's text, in whole characters.
        at: the place, between characters.
        ended: whether the draft's end of sequence follows the text.

    Returns:
        None if the draft has not written that far.
    """
    characters = text[at : at + _WINDOW].decode("utf-8", "surrogateescape")
    end, words, spaces, before = at, 0, False, "."
    for count, character in enumerate(characters, 1):
        end += len(character.encode("utf-8", "surrogateescape"))
        if character.isspace():
            spaces = True
        else:
            words += before.isspace()
        before = character
        if words == 2 or count == FARTHEST or (count == _WITHOUT_SPACES and not spaces):
            return end
    return len(text) if ended else None


def word_starts(text: bytes, at: int) -> bool:
    """Test whether a word starts at a place between characters; in scripts without spaces, one starts at each."""
    here = first_character(text[at : at + 4])
    return not here or here.isspace() or text[:at][-4:].decode("utf-8", "ignore")[-1:].isspace() or is_unspaced(here)


def ends_unit(text: bytes, at: int) -> bool:
    """Test whether a unit ends at a common boundary: it does if a word starts there.

    Each decision is then about whole words, and a replacement is a whole word. `benchmarks/units.py` measures the
    alternative, in which every common boundary ends a unit.
    """
    return word_starts(text, at)


def word_around(text: bytes, at: int) -> tuple[int, int]:
    """The word that holds byte `at`: its start, and the start of the next word or the end of the text."""
    start, end = at, at + 1
    while start and not _starts(text, start):
        start -= 1
    while end < len(text) and not _starts(text, end):
        end += 1
    return start, min(end, len(text))


def _starts(text: bytes, at: int) -> bool:
    is_inside = text[at : at + 1].strip(_INSIDE) == b"" and at < len(text)
    return not is_inside and word_starts(text, at)


def is_safe_cut(text: bytes, at: int) -> bool:
    """Test for a single space between two visible characters: all tokenizers that know words cut there."""
    return _SAFE_CUT.match(text, at) is not None


@dataclass(slots=True)
class DraftPath:
    """The draft model's own path, as far as it has written it.

    Attributes:
        tokens: as the model wrote them, parts of characters included; an end of sequence comes last.
        ends: byte offset of the end of each.
        text: their bytes.
        kept: number of tokens at the start that no restart encodes again, for any replacement of later tokens.
        over: true if no more tokens come though there is no end of sequence: the context is full, or a limit is
            reached.
    """

    tokens: list[Token] = field(default_factory=list[Token])
    ends: list[int] = field(default_factory=list[int])
    text: bytearray = field(default_factory=bytearray)
    kept: int = 0
    over: bool = False

    @property
    def ended(self) -> bool:
        """The model has ended."""
        return bool(self.tokens) and self.tokens[-1].end

    @property
    def written(self) -> bytes:
        """The text in whole characters; no encoding holds bytes that never complete a character."""
        return bytes(self.text[: whole(bytes(self.text))])

    def add(self, token: Token) -> None:
        """Take one more token."""
        self.tokens.append(token)
        self.text += token.data
        self.ends.append(len(self.text))

    def offset(self, count: int) -> int:
        """Byte offset of the end of the first `count` tokens."""
        return self.ends[count - 1] if count else 0

    def is_whole(self, count: int) -> bool:
        """Test whether the first `count` tokens end between characters."""
        end = self.offset(count)
        return whole(bytes(self.text[max(0, end - 4) : end])) == end - max(0, end - 4)

    def fixed(self, first: int) -> int:
        """The number of tokens that no replacement of the token `first` changes: all before the last word before it.

        At most eight tokens before it may be encoded again.
        """
        found, text = first, bytes(self.text[: self.offset(first)])
        while found > self.kept and found + LONGEST > first and not is_safe_cut(text, self.offset(found)):
            found -= 1
        return max(found, self.kept)

    def cut_back(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        del self.tokens[count:], self.ends[count:]
        del self.text[self.offset(count) :]
        self.over = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """One model's encoding of a text, in continuation position.

    Attributes:
        ids: of its tokens.
        ends: byte offset of the end of each.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...]

    def count(self, at: int) -> int | None:
        """The number of tokens before a boundary; None if no token ends there."""
        if not at:
            return 0
        found = bisect_left(self.ends, at)
        return found + 1 if found < len(self.ends) and self.ends[found] == at else None

    def offset(self, count: int) -> int:
        """Byte offset of the end of the first `count` tokens."""
        return self.ends[count - 1] if count else 0


class Encoder:
    """The encodings of an answer by one model; only the text after a safe cut is encoded again.

    A safe cut counts only if the encoding has shown a boundary there.

    Args:
        encode: the model's own.
        lead: white space before every answer, with which the model's path begins. A token of only this white space ends
            at byte 0; a token that continues into the answer ends at its own end there.
    """

    def __init__(self, encode: Encode, lead: str = "") -> None:
        self._encode = encode
        self._lead = lead
        self._text: bytes | None = None if lead else b""  # the text whose encoding is known
        self._known = Encoded((), ())
        self._cuts: tuple[tuple[int, int], ...] = ((0, 0),)  # byte offset and tokens before

    async def upto(self, text: bytes, end: int) -> Encoded | None:
        """The encoding of the first `end` bytes, which are whole characters; None if its tokens do not spell them.

        Raises:
            ProviderError: the server failed.
        """
        given, before, known, cuts = text[:end], self._text, self._known, self._cuts
        if given == before:
            return known
        same = common(given, before or b"")
        kept = max(1, bisect_left(cuts, same - 1, key=itemgetter(0)))
        cuts = cuts[:kept]
        cut, count = cuts[kept - 1]
        lead = "" if cut else self._lead
        start = cut - len(lead.encode())
        try:
            tail = lead + given[cut:].decode()
        except UnicodeDecodeError:
            return None
        pieces = await self._encode(tail) if tail else ()
        if sum(len(piece.data) for piece in pieces) != end - start:
            return None  # the tokenizer normalises the text, so its tokens have no places there
        sizes = accumulate(len(piece.data) for piece in pieces)
        found = Encoded(
            known.ids[:count] + tuple([piece.id for piece in pieces]),
            known.ends[:count] + tuple([max(start + size, 0) for size in sizes]),
        )
        starts = [match.start() for match in _SAFE_CUT.finditer(given, cut + 1)]
        more = [(at, tokens) for at in starts if (tokens := found.count(at)) is not None]
        if self._text is before:  # else a concurrent call has encoded another text
            self._text, self._known, self._cuts = given, found, (*cuts, *more)
        return found

    async def apart(self, text: bytes) -> Encoded | None:
        """The encoding of a text by itself; None if its tokens do not spell the text.

        Raises:
            ProviderError: the server failed.
        """
        return await Encoder(self._encode).upto(text, len(text))


def common(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """The length in bytes of the common beginning of two texts."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most  # the first `low` are the same, the first `high` are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class PathUnit:
    """Draft tokens that one assistant judges together, at the boundaries of the assistant's own tokens.

    Attributes:
        first, last: indices of its first draft token and of the draft token after its last.
        start, end: byte offsets in the answer.
        encoding: the assistant's; None if the bytes are kept unjudged, because they begin inside one of its tokens.
        count: how many of its tokens lie before the unit.
        cut: whether the text had to be cut at its start, so that the assistant is asked after a cut text.
        by_text: whether the assistant takes text only, and continues from the unit's start.
    """

    first: int
    last: int
    start: int
    end: int
    encoding: Encoded | None = None
    count: int = 0
    cut: bool = False
    by_text: bool = False

    @property
    def judged(self) -> bool:
        """False if its bytes are kept, whatever the assistant would write."""
        return self.by_text or self.encoding is not None

    def places(self, bound: int) -> list[tuple[int, int]]:
        """The places before byte `bound`: each byte offset, with the number of the assistant's tokens before it."""
        if self.encoding is None:
            return []
        count = self.count
        found = [(self.start, count)]
        for at in self.encoding.ends[count:]:
            count += 1
            if at >= min(self.end, bound):
                break
            found.append((at, count))
        return found


async def next_unit(draft: DraftPath, first: int, encoder: Encoder, *, own: bool = False) -> PathUnit | None:
    """The unit that begins with a draft token.

    It ends after the first draft token at whose end the assistant's encoding has a boundary, if a word starts there or
    eight tokens have passed. If the unit begins inside a token of that encoding, the bytes up to the first common
    boundary are kept unjudged. If there is no common boundary within eight tokens, or the unit does not end within 64
    characters, the text is cut at its start. After the assistant's own word the text is always cut: the assistant ended
    the word there, whatever the draft writes directly after it.

    Args:
        draft: the draft model's path.
        first: index of the token.
        encoder: the assistant's.
        own: whether the assistant wrote the word before.

    Returns:
        None if the draft has not written far enough. If it never does, `next_unit` never gives a unit.

    Raises:
        ProviderError: the server that encodes failed.
    """
    start, text = draft.offset(first), draft.written
    written, ended = len(draft.tokens), draft.ended  # as of this text: the draft may write more during an encoding
    if draft.tokens[first].end:
        at = len(text)
        encoding = await encoder.upto(text, at)
        return PathUnit(first, first + 1, at, at, encoding, len(encoding.ids) if encoding else 0)
    aligned = True if not start or is_safe_cut(text, start) else None
    for last in range(first + 1, written + 1 - ended):
        end, passed = draft.offset(last), last - first
        if end == start or end > len(text) or whole(bytes(draft.text[start:end])) != end - start:
            continue  # inside a character
        seen = look(text, end, ended=ended)
        if seen is None:
            return None
        word = ends_unit(text, end)
        if aligned and not word and passed < LONGEST:
            continue
        encoding = await encoder.upto(text, seen)
        cut = own and encoding is not None and encoding.count(start) is None
        encoding = await _cut_at(encoder, text, start, seen) if cut else encoding
        if encoding is None:
            return PathUnit(first, last, start, end)
        count, ends = encoding.count(start), encoding.count(end) is not None
        begins = count is not None
        aligned = begins if aligned is None else aligned
        if ends and count is not None and (word or passed >= LONGEST):
            return PathUnit(first, last, start, end, encoding, count, cut=cut)
        if ends and not begins:
            return PathUnit(first, last, start, end)
        long = len(text[start:end].decode("utf-8", "ignore")) >= FARTHEST
        if passed >= LONGEST and (long or not begins):
            encoding = await _cut_at(encoder, text, start, seen)
            count = encoding.count(start) if encoding else None
            return PathUnit(first, last, start, end, encoding, count or 0, cut=True)
    if ended:  # in the middle of a character
        last = written - 1
        return PathUnit(first, last, start, draft.offset(last))
    return None


def next_token(draft: DraftPath, first: int) -> PathUnit:
    """The unit of an assistant with the draft's ids: one token, on the draft's own path (equations 1 and 2)."""
    ids = tuple([token.id or 0 for token in draft.tokens])
    end = draft.offset(first + 1)
    return PathUnit(first, first + 1, draft.offset(first), end, Encoded(ids, tuple(draft.ends)), first)


async def _cut_at(encoder: Encoder, text: bytes, at: int, end: int) -> Encoded | None:
    """The encoding of a text, made of the encodings of its parts before and after a place."""
    before, behind = await encoder.upto(text, at), await encoder.apart(text[at:end])
    if before is None or behind is None:
        return None
    return Encoded(before.ids + behind.ids, before.ends + tuple(at + end for end in behind.ends))


@dataclass(frozen=True, slots=True)
class Restart:
    """The draft's path after a replacement.

    Attributes:
        keep: how many of its tokens stay.
        ids: of the tokens after them, in the draft model's own encoding; None for each if it takes text only.
        ends: byte offset of the end of each.
        text: the answer, to the end of the replacement.
        cut: whether the draft's encoding had to be cut there.
    """

    keep: int
    ids: tuple[int | None, ...]
    ends: tuple[int, ...]
    text: bytes
    cut: bool = False


def end_of_word(tokens: Sequence[Token]) -> int:
    """The number of tokens that complete the word of the first, at most eight; the end of sequence is in no word."""
    count = 1
    while count < min(len(tokens), LONGEST) and not completes(tokens, count):
        count += 1
    return count


def completes(tokens: Sequence[Token], count: int) -> bool:
    """Test whether a word ends after the first tokens, at a boundary between characters."""
    data = b"".join(token.data for token in tokens[:count])
    if whole(data) != len(data):
        return False
    if count == len(tokens) or tokens[count].end:
        return True
    if data.isspace() and data.endswith(b" "):
        return False  # a space belongs to the word after it
    return not continues_word(data, tokens[count])


async def restart(draft: DraftPath, first: int, at: int, tokens: Sequence[Token], encoder: Encoder) -> Restart | None:
    """The draft's path after an assistant's word was put into it.

    The word is the fewest tokens (eight at most) that complete it and end at a boundary of the draft's encoding of the
    answer and the assistant's next words; else the most tokens that end between characters.

    Args:
        draft: the draft model's path.
        first: index of the first token of the unit.
        at: the place: byte offset in the answer.
        tokens: the assistant's continuation from there, lookahead included; without an end of sequence.
        encoder: the draft model's.

    Returns:
        None if no such tokens end between characters, or the draft's encoding does not spell the text.

    Raises:
        ProviderError: the server that encodes failed.
    """
    before = bytes(draft.text[:at])
    ends = [at + size for size in accumulate(len(token.data) for token in tokens)]
    text = before + b"".join(token.data for token in tokens)
    text = text[: whole(text)]
    encoding = await encoder.upto(text, len(text))
    whole_ends = [end for end in ends[:LONGEST] if end <= len(text) and whole(text[:end]) == end]
    if encoding is None or not whole_ends:
        return None
    found = (
        end
        for count, end in enumerate(ends[:LONGEST], 1)
        if end in whole_ends and encoding.count(end) is not None and completes(tokens, count)
    )
    end, cut = next(found, None), False
    if end is None:
        end, cut = whole_ends[-1], True
        encoding = await encoder.upto(text, end)
        assert encoding is not None
    keep, least = first, draft.fixed(first)
    while keep > least and not (draft.offset(keep) and encoding.count(draft.offset(keep)) is not None):
        keep -= 1
    if encoding.count(draft.offset(keep)) is None:
        cut, start = True, draft.offset(keep)
        behind = await encoder.apart(text[start:end])
        if behind is None:
            return None
        own = tuple(token.id or 0 for token in draft.tokens[:keep])
        encoding = Encoded(own + behind.ids, (*draft.ends[:keep], *(start + one for one in behind.ends)))
    begin, count = encoding.count(draft.offset(keep)), encoding.count(end)
    assert begin is not None and count is not None
    if keep and not draft.offset(keep):  # the tokens of a lead stay
        begin = bisect_right(encoding.ends, 0)
    return Restart(keep, encoding.ids[begin:count], encoding.ends[begin:count], text[:end], cut)
