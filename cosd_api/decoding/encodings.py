"""Each model's own encoding of the text after its prompt, obtained without a generation request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cosd_providers.contract import Piece, Token
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import merge, sendable


class Encodings:
    """The models' encodings of the texts of one answer.

    Args:
        turns: the models with their rendered prompts.
    """

    def __init__(self, turns: Sequence[RenderedPrompt]) -> None:
        self._turns = turns
        self._known: dict[int, dict[bytes, list[Piece]]] = {}

    async def tokens(self, model: int, text: bytes) -> Mapping[int, bytes] | None:
        """Encode `text` into tokens of whole characters, and map the byte offset of each token to the token.

        The offsets refer to the text that the server receives, which lacks bytes that are not valid UTF-8.

        Returns:
            None if the encoding cannot be determined.

        Raises:
            ProviderError: the model failed.
        """
        turn, sent = self._turns[model], sendable(text)
        try:
            pieces = await turn.provider.tokenize(turn.prompt + sent)
        except UnsupportedError:  # the encoding of this text cannot be determined
            return None
        found: dict[int, bytes] = {}
        at = len(sent.encode()) - sum(len(piece.data) for piece in pieces)
        for token in merge(Token(piece.data, None) for piece in pieces):
            if at >= 0:
                found[at] = token.data
            at += len(token.data)
        return found

    async def reads_as(self, model: int, text: bytes, tokens: Sequence[Token]) -> bool:
        """Test whether a model that encodes `text` and the tokens' bytes together keeps these tokens as they are.

        The result is False if the encoding cannot be determined. The encoding cannot be determined if a token contains
        characters of several bytes, because that token may have been joined from several raw tokens.
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
        except ProviderError:  # the encoding of this text cannot be determined
            return False
        self._known[model] = found
        before, after = found[text], found[data]
        own = [token.data for token in tokens if not token.end]
        return after[: len(before)] == before and [piece.data for piece in after[len(before) :]] == own
