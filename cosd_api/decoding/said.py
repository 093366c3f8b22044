"""The words that one assistant has said in an answer, by the ids (or the text) after which it said it.

An assistant's word after some ids never becomes wrong, whatever is replaced later. A question, a question that is asked
early, the words after a replacement and an open stream are four ways to fill the same record.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from cosd_providers.contract import Token

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Writing:
    """The text that an assistant without ids wrote after a text.

    Attributes:
        tokens: the tokens; empty if it could not answer.
        ended: whether the assistant ended the answer after them.
    """

    tokens: Sequence[Token] = ()
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """The request that said something.

    Attributes:
        number: number of the request.
        at: byte offset of the place.
        strategy: strategy of the request, if the provider reports it.
        hidden: whether a stream showed the token without its probability, so that a question may still find it.
    """

    number: int
    at: int
    strategy: str | None = None
    hidden: bool = False


@dataclass(slots=True)
class Said:
    """Everything that one assistant has said.

    Attributes:
        after: its most probable token after some ids; None if it could not answer.
        wrote: its own text, by what it was asked.
        sources: the request that said it, by the same keys.
    """

    after: dict[Ids, Token | None] = field(default_factory=dict[Ids, Token | None])
    wrote: dict[Hashable, Writing] = field(default_factory=dict[Hashable, Writing])
    sources: dict[Hashable, Source] = field(default_factory=dict[Hashable, Source])

    def note(self, ids: Ids, token: Token | None, source: Source) -> None:
        """Record a token. The first record stays, because a server asked twice may differ in the last digit."""
        if ids not in self.after:
            self.after[ids], self.sources[ids] = token, source

    def note_text(self, key: Hashable, writing: Writing, source: Source) -> None:
        """Record a text."""
        self.wrote[key], self.sources[key] = writing, source

    def words(self, ids: Ids) -> Iterator[Token | None]:
        """The tokens that the assistant has said after some ids, one after the other; the last may be None."""
        while ids in self.after:
            token = self.after[ids]
            yield token
            if token is None or token.end:
                return
            ids = (*ids, token.id or 0)

    def is_hidden(self, ids: Ids) -> bool:
        """Test whether a question may still find the probability of the token after some ids."""
        return ids in self.sources and self.sources[ids].hidden

    def forget(self, before: int) -> None:
        """Drop what was said about places before a byte offset of the answer."""
        old = [key for key, source in self.sources.items() if source.at < before]
        for key in old:
            del self.sources[key]
            self.wrote.pop(key, None)
            self.after.pop(key, None)  # type: ignore[call-overload]
