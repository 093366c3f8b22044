r"""An answer in the token ids of different models: encodings, lookahead, units, and restarts after a word.

When a model is asked about a place, it is sent the ids of its own encoding of the answer, never a text that ends at the
place. A tokenizer may encode the end of a text in a way that the model has never seen inside a text. For example,
GPT-2's tokenizer encodes the new lines in `"end.\n\nThe"` as two tokens, but new lines at the end of a text as one
token. Therefore the text before a place is encoded together with the text that the draft wrote after it (`look`), and
only the boundaries of the assistant's own tokens are places. This makes equation 3 of the paper exact.

All offsets are in bytes of the answer. All results depend only on the draft's path, not on earlier requests.
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
"""Maximum number of characters in a lookahead, and in a unit."""
_WITHOUT_SPACES = 32  # maximum number of characters in a lookahead without white space
_WINDOW = 4 * FARTHEST  # enough bytes for `FARTHEST` characters
_SPACES = (
    rb"\xc2[\x85\xa0]",
    rb"\xe1\x9a\x80",
    rb"\xe2\x80[\x80-\x8a\xa8\xa9\xaf]",
    rb"\xe2\x81\x9f",
    rb"\xe3\x80\x80",
)
"""White space other than ASCII, in UTF-8."""
_VISIBLE = (  # the first bytes of a character show whether it is visible
    rb"[\x21-\x7f\xc3-\xe0\xe4-\xff]|\xc2[^\x85\xa0]|\xe1(?:[^\x9a]|\x9a[^\x80])"
    rb"|\xe2(?:[^\x80\x81]|\x80[^\x80-\x8a\xa8\xa9\xaf]|\x81[^\x9f])|\xe3(?:[^\x80]|\x80[^\x80])"
)
_SYMBOLS = (rb"\xc2[\x80-\xbf]", rb"\xc3[\x97\xb7]", rb"\xe2(?:\x86[\x90-\xbf]|[\x87-\xaf][\x80-\xbf])")
"""Symbols outside ASCII, in UTF-8: real vocabularies hold tokens such as `> </` and ` = `, across the space."""
_SAFE_CUT = re.compile(
    rb"(?<=[^\s\x00-\x20$+<=>^|~\x7f])"
    + b"".join(b"(?<!" + one + b")" for one in (*_SPACES, *_SYMBOLS))
    + b"(?= (?:"
    + _VISIBLE
    + b"))",
    re.DOTALL,
)
_INSIDE = bytes(range(0x80, 0xC0))  # UTF-8 bytes that continue a character

Encode = Callable[[str], Awaitable[Sequence[Piece]]]
"""A function that returns a model's encoding of a response's text; see `contract.IdContexts.encode`."""


def look(text: bytes, at: int, *, ended: bool, cuts: bool = False) -> int | None:
    """The end of a place's lookahead, which is the text that can affect how the text before the place is encoded.

    The lookahead ends after the first character of the second word that begins after the place, after 64 characters (or
    32, if none of them is white space), or at the end of the answer. If every safe cut is a token boundary, it ends at
    the first safe cut that is not before the place, with the character after the space.

    Args:
        text: the draft's text, which ends with a whole character.
        at: byte offset of the place, which lies between two characters.
        ended: whether the draft has ended the answer after the text.
        cuts: whether every safe cut is a token boundary, whatever follows; see `Encoder`.

    Returns:
        None if the draft has not written far enough.
    """
    characters = text[at : at + _WINDOW].decode("utf-8", "surrogateescape")
    end, words, spaces, before = at, 0, False, "."
    for count, character in enumerate(characters, 1):
        start, end = end, end + len(character.encode("utf-8", "surrogateescape"))
        if character.isspace():
            spaces = True
        else:
            words += before.isspace()
        if cuts and count > 1 and before == " " and is_safe_cut(text, start - 1):
            return end
        before = character
        if words == 2 or count == FARTHEST or (count == _WITHOUT_SPACES and not spaces):
            return end
    return len(text) if ended else None


def word_starts(text: bytes, at: int) -> bool:
    """Test whether a word starts at a place between characters. In scripts without spaces, each character is a word."""
    here = first_character(text[at : at + 4])
    return not here or here.isspace() or text[:at][-4:].decode("utf-8", "ignore")[-1:].isspace() or is_unspaced(here)


def ends_unit(text: bytes, at: int) -> bool:
    """Test whether a common boundary ends a unit, which it does if a word starts there.

    With this definition, each decision is about whole words, and each replacement is a whole word.
    `benchmarks/units.py` measures the alternative, in which a unit ends at every common boundary.
    """
    return word_starts(text, at)


def word_around(text: bytes, at: int) -> tuple[int, int]:
    """The start and end of the word that contains byte `at`; the end is where the next word starts or the text ends."""
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
    """Test for a single space between two visible characters, where every tokenizer that knows words cuts a text."""
    return _SAFE_CUT.match(text, at) is not None


@dataclass(slots=True)
class DraftPath:
    """The draft model's own path, as far as the model has written it.

    Attributes:
        tokens: the tokens that the model wrote, including parts of characters. An end of sequence can only be the last
            token.
        ends: byte offset of the end of each token.
        text: the bytes of all tokens, joined.
        kept: number of leading tokens that no restart encodes again, whichever later token is replaced.
        over: whether the path is complete without an end of sequence, because the context is full or a limit is
            reached.
    """

    tokens: list[Token] = field(default_factory=list[Token])
    ends: list[int] = field(default_factory=list[int])
    text: bytearray = field(default_factory=bytearray)
    kept: int = 0
    over: bool = False

    @property
    def ended(self) -> bool:
        """Test whether the path ends with an end of sequence."""
        return bool(self.tokens) and self.tokens[-1].end

    @property
    def written(self) -> bytes:
        """The text without any incomplete character at its end, because such a character cannot be encoded."""
        return bytes(self.text[: whole(bytes(self.text))])

    def add(self, token: Token) -> None:
        """Append a token."""
        self.tokens.append(token)
        self.text += token.data
        self.ends.append(len(self.text))

    def offset(self, count: int) -> int:
        """The byte offset at which the first `count` tokens end."""
        return self.ends[count - 1] if count else 0

    def is_whole(self, count: int) -> bool:
        """Test whether the first `count` tokens end with a whole character."""
        end = self.offset(count)
        return whole(bytes(self.text[max(0, end - 4) : end])) == end - max(0, end - 4)

    def fixed(self, first: int) -> int:
        """The number of leading tokens that remain unchanged if the token `first` is replaced.

        The tokens before a replacement are encoded again from the last safe cut on, but at most eight of them.
        """
        found, text = first, bytes(self.text[: self.offset(first)])
        while found > self.kept and found + LONGEST > first and not is_safe_cut(text, self.offset(found)):
            found -= 1
        return max(found, self.kept)

    def cut_back(self, count: int) -> None:
        """Remove all tokens but the first `count`."""
        del self.tokens[count:], self.ends[count:]
        del self.text[self.offset(count) :]
        self.over = False


@dataclass(frozen=True, slots=True)
class Encoded:
    """One model's encoding of a text that continues the model's prompt.

    Attributes:
        ids: ids of the tokens.
        ends: byte offset of the end of each token.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...]

    def count(self, at: int) -> int | None:
        """The number of tokens before byte offset `at`; None if no token ends there."""
        if not at:
            return 0
        found = bisect_left(self.ends, at)
        return found + 1 if found < len(self.ends) and self.ends[found] == at else None

    def offset(self, count: int) -> int:
        """The byte offset at which the first `count` tokens end."""
        return self.ends[count - 1] if count else 0


class Encoder:
    """The cached encoding of a growing answer by one model; only the text after a safe cut is encoded again.

    A safe cut is used only if it is a token boundary in an earlier encoding that includes the cut's lookahead.

    Args:
        encode: encodes a text with the model's tokenizer.
        lead: white space that the chat template writes before every answer, and with which the model's path begins. A
            token that ends inside this white space counts as ending at byte 0. A token that extends into the answer
            keeps its end in the answer.
        cuts: whether no token of the vocabulary contains a space between two visible characters. Then the encoding
            before a safe cut does not depend on the text after it.

    Attributes:
        cuts: see above.
    """

    def __init__(self, encode: Encode, lead: str = "", *, cuts: bool = False) -> None:
        self.cuts = cuts
        self._encode = encode
        self._lead = lead
        self._text: bytes | None = None if lead else b""  # the text whose encoding is known
        self._known = Encoded((), ())
        self._cuts: tuple[tuple[int, int], ...] = ((0, 0),)  # safe cuts: byte offset and number of tokens before

    async def upto(self, text: bytes, end: int) -> Encoded | None:
        """Encode the first `end` bytes, which must be whole characters; None if the tokens do not spell these bytes.

        Raises:
            ProviderError: the server that encodes failed.
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
            return None  # the tokenizer normalises the text, so its tokens have no byte offsets in the text
        sizes = accumulate(len(piece.data) for piece in pieces)
        found = Encoded(
            known.ids[:count] + tuple([piece.id for piece in pieces]),
            known.ends[:count] + tuple([max(start + size, 0) for size in sizes]),
        )
        starts = [match.start() for match in _SAFE_CUT.finditer(given, cut + 1)]
        if not self.cuts:  # a token may still come to cross a cut whose lookahead is not written
            starts = [at for at in starts if look(given, at, ended=False) is not None]
        more = [(at, tokens) for at in starts if (tokens := found.count(at)) is not None]
        if self._text is before:  # otherwise, a concurrent call has encoded a different text
            self._text, self._known, self._cuts = given, found, (*cuts, *more)
        return found

    async def apart(self, text: bytes) -> Encoded | None:
        """Encode a text by itself; None if the tokens do not spell the text.

        Raises:
            ProviderError: the server that encodes failed.
        """
        return await Encoder(self._encode).upto(text, len(text))


def common(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """The length of the common prefix of two texts, in bytes."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    low, high = 0, most  # the first `low` bytes are equal; the first `high` bytes are not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class PathUnit:
    """Draft tokens that one assistant judges together, at places where the assistant's own tokens end.

    Attributes:
        first, last: index of the unit's first draft token, and the index after its last draft token.
        start, end: byte offsets of the unit in the answer.
        encoding: the assistant's encoding of the answer. None if the assistant accepts only text, or if the unit is
            kept without a verdict because it begins inside one of the assistant's tokens.
        count: number of the assistant's tokens before the unit.
        cut: whether the text had to be cut at the unit's start; if so, the assistant has to continue a cut text.
        plain: whether the unit is judged without an encoding: as one token, or as text.
    """

    first: int
    last: int
    start: int
    end: int
    encoding: Encoded | None = None
    count: int = 0
    cut: bool = False
    plain: bool = False

    @property
    def judged(self) -> bool:
        """False if the unit is kept, whatever the assistant would write."""
        return self.plain or self.encoding is not None

    def places(self, bound: int) -> list[tuple[int, int]]:
        """The byte offset of each place before byte `bound`, with the number of the assistant's tokens before it."""
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
    """Find the unit that begins with a draft token.

    A common boundary is a place at which both a draft token and a token of the assistant's encoding end. The unit ends
    at the first common boundary at which a word starts, or at the first common boundary after at least eight draft
    tokens. If the unit begins inside one of the assistant's tokens, the text up to the first common boundary is kept
    without a verdict. If no common boundary follows within eight tokens, or if the unit has not ended after eight
    tokens and 64 characters, the text is cut at the unit's start. If necessary, the text is also cut directly after a
    word that the assistant wrote, because the assistant ended its word at that place, whatever the draft writes next.

    Args:
        draft: the draft model's path.
        first: index of the draft token.
        encoder: the encoder of the assistant.
        own: whether the assistant wrote the word before the unit.

    Returns:
        None if the draft has not written far enough. If the draft writes no more, no further unit exists.

    Raises:
        ProviderError: the server that encodes failed.
    """
    start, text = draft.offset(first), draft.written
    written, ended = len(draft.tokens), draft.ended  # read before any `await`, in which the draft may grow
    if draft.tokens[first].end:
        at = len(text)
        encoding = await encoder.upto(text, at)
        return PathUnit(first, first + 1, at, at, encoding, len(encoding.ids) if encoding else 0)
    aligned = True if not start or is_safe_cut(text, start) else None
    for last in range(first + 1, written + 1 - ended):
        end, passed = draft.offset(last), last - first
        if end == start or end > len(text) or whole(bytes(draft.text[start:end])) != end - start:
            continue  # the token ends inside a character
        seen = look(text, end, ended=ended, cuts=encoder.cuts)
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
    if ended:  # the text ends in the middle of a character
        last = written - 1
        return PathUnit(first, last, start, draft.offset(last))
    return None


def next_token(draft: DraftPath, first: int) -> PathUnit:
    """The unit for an assistant with the draft's ids, which is one token on the draft's path (equations 1 and 2)."""
    ids = tuple([token.id or 0 for token in draft.tokens])
    end = draft.offset(first + 1)
    return PathUnit(first, first + 1, draft.offset(first), end, Encoded(ids, tuple(draft.ends)), first)


async def _cut_at(encoder: Encoder, text: bytes, at: int, end: int) -> Encoded | None:
    """Encode the parts of a text before and after a place separately, and join the encodings."""
    before, behind = await encoder.upto(text, at), await encoder.apart(text[at:end])
    if before is None or behind is None:
        return None
    return Encoded(before.ids + behind.ids, before.ends + tuple(at + end for end in behind.ends))


@dataclass(frozen=True, slots=True)
class Restart:
    """The changes to the draft's path that a replacement makes.

    Attributes:
        keep: number of leading draft tokens that remain.
        ids: ids of the new tokens after the remaining ones, in the draft model's own encoding; each id is None if the
            draft accepts only text.
        ends: byte offset of the end of each new token.
        text: the answer up to the end of the replacement.
        cut: whether the draft has to continue a cut text.
    """

    keep: int
    ids: tuple[int | None, ...]
    ends: tuple[int, ...]
    text: bytes
    cut: bool = False


def end_of_word(tokens: Sequence[Token]) -> int:
    """The number of tokens, at most eight, that complete the first word. The end of sequence belongs to no word."""
    count = 1
    while count < min(len(tokens), LONGEST) and not completes(tokens, count):
        count += 1
    return count


def completes(tokens: Sequence[Token], count: int) -> bool:
    """Test whether the first `count` tokens end with a whole character at the end of a word."""
    data = b"".join(token.data for token in tokens[:count])
    if whole(data) != len(data):
        return False
    if count == len(tokens) or tokens[count].end:
        return True
    if data.isspace() and data.endswith(b" "):
        return False  # the space belongs to the word after it
    return not continues_word(data, tokens[count])


async def restart(draft: DraftPath, first: int, at: int, tokens: Sequence[Token], encoder: Encoder) -> Restart | None:
    """Compute the draft's path after an assistant's word replaces a part of it.

    The word is the shortest run of tokens, from the start of the continuation, that completes a word and ends at a
    token boundary of the draft model. To find this boundary, the draft model encodes the text together with the
    assistant's next words. If no run of at most eight tokens qualifies, the word is the longest run of at most eight
    tokens that ends with a whole character.

    Args:
        draft: the draft model's path.
        first: index of the first token of the unit.
        at: byte offset of the place in the answer.
        tokens: the assistant's continuation from the place, including the lookahead but not an end of sequence.
        encoder: the encoder of the draft model.

    Returns:
        None if none of these tokens ends with a whole character, or if the draft's encoding does not spell the text.

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
    keep = min(first, bisect_right(draft.ends, at))  # not a part of a character, after which the draft ended the answer
    least = min(draft.fixed(first), keep)
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
    if keep and not draft.offset(keep):  # only tokens of the `lead` remain, all of which end at byte 0
        begin = bisect_right(encoding.ends, 0)
    return Restart(keep, encoding.ids[begin:count], encoding.ends[begin:count], text[:end], cut)
