"""The draft's path after a word of an assistant has replaced a part of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cosd_api.alignment import LONGEST
from cosd_api.paths.encoding import DraftPath, Encoder
from cosd_providers.contract import Token
from cosd_providers.text import continues_word, whole


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
        start = draft.offset(keep)
        after = await encoder.apart(text[start:end])
        if after is None:
            return None
        return Restart(keep, after.ids, tuple(start + one for one in after.ends), text[:end], cut=True)
    begin, count = encoding.count(draft.offset(keep)), encoding.count(end)
    assert begin is not None and count is not None
    if keep and not draft.offset(keep):  # only tokens of the `lead` remain, all of which end at byte 0
        begin = bisect_right(encoding.ends, 0)
    return Restart(keep, encoding.ids[begin:count], encoding.ends[begin:count], text[:end], cut)
