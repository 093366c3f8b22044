"""The draft's path through an answer, and the encoding of a growing answer by one model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from cosd_api.alignment import LONGEST
from cosd_api.paths.cuts import SAFE_CUT, common, is_safe_cut, look
from cosd_providers.contract import Piece, Token
from cosd_providers.text import whole

Encode = Callable[[str], Awaitable[Sequence[Piece]]]
"""A function that returns a model's encoding of a response's text; see `contract.IdContexts.encode`."""


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
        starts = [match.start() for match in SAFE_CUT.finditer(given, cut + 1)]
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
