"""Records of an answer across tokenizers: assistants as they judge, replacements, and facts beside the draft's path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio

from cosd_api.alignment import Decision
from cosd_api.decoding.commands import DRAFT
from cosd_api.paths import Encoder, PathUnit, Restart
from cosd_providers.contract import Proposal, Token


@dataclass(slots=True)
class Firing:
    """A replacement that an assistant wants.

    Attributes:
        changed: the first byte of the answer that it changes.
        decision: the assistant's.
        unit: the unit that was judged.
        way: the draft's path after it; None if the answer ends there.
        at: the place.
        tokens: the assistant's, as it wrote them.
    """

    changed: int
    decision: Decision
    unit: PathUnit
    way: Restart | None
    at: int
    tokens: Sequence[Token]


@dataclass(slots=True)
class PathHearing:
    """One assistant, with its progress in judging; a new object is made after every replacement.

    Attributes:
        model: its index.
        encoder: of its encodings; None if it takes text only.
        same: whether it has the draft's ids: then its units are the draft's tokens.
        first: index of the draft token at which its next unit begins.
        answers: to places that it was asked about, by the ids before each.
        hidden: the answers whose probability its watch did not show.
        proposals: its own text at units that it was asked about by text, by their first draft token.
        requests: numbers of the questions that brought these, by the ids before a place, or the first token of a unit.
        firing: the replacement that it wants; it waits until the other assistants have judged as far.
        error: the reason why it could not judge the unit; it matters once the answer waits for the assistant.
        starts: byte offsets at which its units begin.
        starving: whether it waits for the draft to write more.
        own: index of the draft token after the word that it wrote last.
        scope: cancels its work.
    """

    model: int
    encoder: Encoder | None
    same: bool
    first: int = 0
    answers: dict[tuple[int, ...], Token | None] = field(default_factory=dict[tuple[int, ...], Token | None])
    hidden: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    proposals: dict[int, Proposal | None] = field(default_factory=dict[int, Proposal | None])
    requests: dict[tuple[int, ...] | int, int] = field(default_factory=dict[tuple[int, ...] | int, int])
    firing: Firing | None = None
    error: Exception | None = None
    starts: set[int] = field(default_factory=set[int])
    starving: bool = False
    own: int | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def open(self) -> bool:
        """True while it judges."""
        return self.firing is None and self.error is None


@dataclass(slots=True)
class PathMark:
    """Facts about one token of the draft's path, beside the token.

    Attributes:
        source: as in `Placed`.
        winner: the decision that put it there.
        replaced: the draft's tokens that it replaced, on the first token of a replacement.
        draft: number of the draft that wrote it, or that wrote the text it replaced.
        at: when it was written.
        asked: whether an assistant was asked about it.
    """

    source: int = DRAFT
    winner: Decision | None = None
    replaced: tuple[Token, ...] = ()
    draft: int = 0
    at: float = 0.0
    asked: bool = False


@dataclass(frozen=True, slots=True)
class AboutTokens:
    """A decision, and the range of the path's tokens that it is about: `first` to `last`, which is excluded."""

    first: int
    last: int
    decision: Decision

    def before(self, last: int, size: int) -> AboutTokens:
        """The same decision for the tokens before `last`: the last `size` bytes of its word are written over."""
        if self.last > last:
            self.decision.text = self.decision.text[: max(len(self.decision.text) - size, 0)]
        return replace(self, last=min(self.last, last))
