"""Records of an answer across tokenizers: the assistants' progress, replacements, and facts about tokens."""

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
    """A replacement that the verifier has decided on for one assistant, and that has not been carried out yet.

    Attributes:
        changed: byte offset in the answer from which the replacement changes the text.
        decision: the decision to replace.
        unit: the unit that was judged.
        way: the draft's path after the replacement; None if the replacement ends the answer.
        at: byte offset of the place.
        tokens: the assistant's tokens from the place on.
    """

    changed: int
    decision: Decision
    unit: PathUnit
    way: Restart | None
    at: int
    tokens: Sequence[Token]


@dataclass(slots=True)
class PathHearing:
    """The progress of one assistant in judging the path. Every replacement starts a new hearing.

    Attributes:
        model: index of the model.
        encoder: the assistant's encoder; None if the assistant accepts only text.
        same: whether the assistant has the draft's ids; if so, its units are the draft's tokens.
        first: index of the draft token at which the assistant's next unit begins.
        answers: the assistant's answers, by the ids before each place.
        hidden: for each place at which a watch's answer had no probability, the ids before the place.
        proposals: the assistant's own text for units about which it was sent text, by the index of the unit's first
            draft token.
        requests: numbers of the questions that were answered, by the ids before the place or by the first draft token
            of the unit.
        firing: the assistant's replacement, which is not carried out until the other assistants have judged the text
            before it.
        error: the reason why the assistant could not judge a unit; raised only when the answer has to wait for this
            unit.
        starts: indices of the draft tokens at which the assistant's units begin.
        starving: whether the assistant waits for the draft to write more.
        own: index of the draft token directly after the last replacement, if this assistant made the replacement.
        scope: the scope through which the assistant's work is cancelled.
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
        """Test whether the assistant is still judging."""
        return self.firing is None and self.error is None


@dataclass(slots=True)
class PathMark:
    """Facts about one token of the draft's path.

    Attributes:
        source: the model that wrote the token, as in `Placed`.
        winner: on each token of a replacement, the decision that put the token there.
        replaced: on the first token of a replacement, the draft's tokens that were replaced.
        draft: number of the draft that wrote the token, or the text that the token replaced.
        at: time at which the token was written.
        asked: whether an assistant was asked about the token and gave no answer.
    """

    source: int = DRAFT
    winner: Decision | None = None
    replaced: tuple[Token, ...] = ()
    draft: int = 0
    at: float = 0.0
    asked: bool = False


@dataclass(frozen=True, slots=True)
class AboutTokens:
    """A decision about the path's tokens from index `first` up to, but not including, index `last`."""

    first: int
    last: int
    decision: Decision

    def before(self, last: int, size: int) -> AboutTokens:
        """The decision about the tokens before `last`; the later tokens' `size` bytes are cut off its text."""
        if self.last > last:
            self.decision.text = self.decision.text[: max(len(self.decision.text) - size, 0)]
        return replace(self, last=min(self.last, last))
