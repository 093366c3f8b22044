"""Each model's own encoding of a text that follows its prompt, without any generation request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_providers.contract import Piece, Token
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import merge, sendable


class Encodings:
    """The encodings of one answer's texts.

    Args:
        turns: the models, each with its rendered prompt.
    """

    def __init__(self, turns: Sequence[RenderedPrompt]) -> None:
        self._turns = turns
        self._known: dict[int, dict[bytes, list[Piece]]] = {}

    async def tokens(self, model: int, text: bytes) -> Mapping[int, bytes] | None:
        """The tokens that begin in `text`, in whole characters, each by the byte at which it begins.

        Offsets count the bytes that a server sees: without bytes that are no characters. None if the encoding cannot be
        known.

        Raises:
            ProviderError: the model failed.
        """
        turn, sent = self._turns[model], sendable(text)
        try:
            pieces = await turn.provider.tokenize(turn.prompt + sent)
        except UnsupportedError:  # the encoding of this text cannot be known
            return None
        found: dict[int, bytes] = {}
        at = len(sent.encode()) - sum(len(piece.data) for piece in pieces)
        for token in merge(Token(piece.data, None) for piece in pieces):
            if at >= 0:
                found[at] = token.data
            at += len(token.data)
        return found

    async def reads_as(self, model: int, text: bytes, tokens: Sequence[Token]) -> bool:
        """Test whether a model's encoding of `text` and these tokens' bytes is its encoding of `text`, and then these
        tokens.

        False if that cannot be known. A token with a character of several bytes may be joined from several tokens, and
        looks like a single token of the same bytes, so the answer is not known.
        """
        if not all(token.data.isascii() for token in tokens):
            return False
        turn = self._turns[model]
        data = text + b"".join(token.data for token in tokens)
        if sendable(data).encode() != data or not (await turn.provider.describe()).capabilities.tokenize:
            return False
        known = self._known.get(model, {})
        found: dict[bytes, list[Piece]] = {}
        try:
            for part in (text, data):
                found[part] = known.get(part) or await turn.provider.tokenize(turn.prompt + part.decode())
        except ProviderError:  # the encoding of this text cannot be known
            return False
        self._known[model] = found
        before, after = found[text], found[data]
        own = [token.data for token in tokens if not token.end]
        return after[: len(before)] == before and [piece.data for piece in after[len(before) :]] == own
