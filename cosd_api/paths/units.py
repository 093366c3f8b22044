"""Units: the draft tokens that one assistant judges together, by its own ids."""

from __future__ import annotations

from dataclasses import dataclass

from cosd_api.alignment import LONGEST
from cosd_api.paths.cuts import FARTHEST, ends_unit, is_safe_cut, look
from cosd_api.paths.encoding import DraftPath, Encoded, Encoder
from cosd_providers.text import whole


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


async def _cut_at(encoder: Encoder, text: bytes, at: int, end: int) -> Encoded | None:
    """Encode the parts of a text before and after a place separately, and join the encodings."""
    before, after = await encoder.upto(text, at), await encoder.apart(text[at:end])
    if before is None or after is None:
        return None
    return Encoded(before.ids + after.ids, before.ends + tuple(at + end for end in after.ends))
