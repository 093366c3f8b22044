"""Vocabularies: models share the same token ids if their servers encode and decode test data alike.

The same test text shows whether a token crosses a space between words, as in SuperBPE or BoundlessBPE. If none does,
the encoding of a text before such a space does not depend on what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cosd_providers.contract import IdContexts, KnownVocabulary, Provider, ServerInfo
from cosd_providers.errors import InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.text import LOST
from cosd_providers.tokenizers import TEST_TEXT
from cosd_providers.vocabulary import crosses_space

_PHRASES = """
By the way, it is one of the best in the world, and at the end of the day I have to be there, as well as you.
for i in range(10): return self.x if x is not None else a + b
In der Stadt ist das nicht so. Il y a de quoi, dans la vie. En el mundo, a lo largo de la noche.
"""
"""Frequent phrases, which training merges first if it may merge words: in a published SuperBPE tokenizer, the first
such merge already yields `b" of the"`. All characters are ASCII, because some servers need a request for any other."""

_TEXT = TEST_TEXT.partition(" <|")[0] + _PHRASES
"""The test text, without the strings that some servers would parse as special tokens."""

_SPREAD = 64
"""The approximate number of ids to decode, which are spread over the vocabulary."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A fingerprint of a model's vocabulary: equal for models whose ids have the same meaning, on any server."""

    ids: tuple[int, ...]  # the encoding of a test text
    # the decoded text of a sample of ids between the least and the greatest id in `ids`. White space and bytes that are
    # not characters are left out, because servers show them differently
    spread: str
    # a token that crosses a space between words (`vocabulary.crosses_space`); empty if there is none, None if this
    # cannot be known. If all tokens are known from a local tokenizer, it is certain that there is none. Otherwise there
    # is none in the test text: a vocabulary that has such tokens only for rarer phrases, or for other languages, is not
    # recognised
    crossing: bytes | None = field(default=None, compare=False, repr=False)


async def vocabulary(provider: Provider, info: ServerInfo) -> Vocabulary | None:
    """Find the fingerprint of a model's vocabulary; None if the endpoint does not accept or show the necessary ids.

    Raises:
        ProviderError: the server failed.
    """
    if not (info.capabilities.ids and info.capabilities.probs and isinstance(provider, IdContexts)):
        return None
    try:
        pieces = await provider.encode(_TEXT)
        ids = tuple([piece.id for piece in pieces])
        least, greatest = min(ids), max(ids)
        chosen = range(least, greatest + 1, max(1, (greatest - least) // _SPREAD))
        spread = "".join((await provider.decode(chosen)).replace(LOST, "").split())
    except (UnsupportedError, InvalidRequestError, ResponseError):
        return None
    if b"".join(piece.data for piece in pieces) != _TEXT.encode():
        return Vocabulary(ids, spread)
    crossing = next((piece.data for piece in pieces if crosses_space(piece.data)), None)
    if crossing is None and isinstance(provider, KnownVocabulary):
        crossing = await provider.crossing_token()
    return Vocabulary(ids, spread, crossing or b"")
