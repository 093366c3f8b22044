"""Comparison of vocabularies: models share the same token ids if their servers encode and decode test data alike."""

from __future__ import annotations

from dataclasses import dataclass

from cosd_providers.contract import IdContexts, Provider, ServerInfo
from cosd_providers.errors import InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.text import LOST
from cosd_providers.tokenizers import TEST_TEXT

__all__ = ["Vocabulary", "vocabulary"]

_TEXT = TEST_TEXT.partition(" <|")[0]
"""The test text, without the strings that some servers would parse as special tokens."""

_SPREAD = 64
"""The approximate number of ids to decode, which are spread over the vocabulary."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A fingerprint of a model's vocabulary: equal for models whose ids have the same meaning, on any server.

    Attributes:
        ids: the encoding of a test text.
        spread: the decoded text of a sample of ids between the least and the greatest id in `ids`. White space and
            bytes that are not characters are left out, because servers show them differently.
    """

    ids: tuple[int, ...]
    spread: str


async def vocabulary(provider: Provider, info: ServerInfo) -> Vocabulary | None:
    """Find the fingerprint of a model's vocabulary; None if the endpoint does not accept or show the necessary ids.

    Raises:
        ProviderError: the server failed.
    """
    if not (info.capabilities.ids and info.capabilities.probs and isinstance(provider, IdContexts)):
        return None
    try:
        ids = tuple([piece.id for piece in await provider.encode(_TEXT)])
        least, greatest = min(ids), max(ids)
        chosen = range(least, greatest + 1, max(1, (greatest - least) // _SPREAD))
        return Vocabulary(ids, "".join((await provider.decode(chosen)).replace(LOST, "").split()))
    except (UnsupportedError, InvalidRequestError, ResponseError):
        return None
