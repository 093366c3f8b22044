"""The settings of an answer's pace, which affect its cost and never its text."""

from __future__ import annotations

from dataclasses import dataclass, field

from cosd_api.verification import Needs

FIRST = 14
"""Number of tokens that the first draft of a fusion may be ahead, before anything is known about the models."""

LEAST = 4
"""Minimum number of tokens that a draft may be ahead of the judged text."""

PATIENCE = 1.0
"""Number of seconds to wait at most until a stream that is no longer needed ends by itself."""

_RESTARTS, _BETWEEN = 2, 20  # imaginary replacements before the first answer, and their distance in tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The settings of the pace; see also `Fusion`.

    Attributes:
        draft_length: number of tokens in a drafting round; None means that the draft is not written in rounds.
        max_ahead: maximum number of tokens drafted beyond the judged text. A unit that has begun is always completed.
        leases: whether the draft's server reads the text again for a request that overtakes a cancelled one.
        needs: the data that the verifier needs.
        places: recommended number of places per request, for each assistant; an empty tuple means no limit.
        watched: the assistants that are asked by watches if they are sent ids.
        questions_only: the assistants that are always asked by questions, because the user chose so.
        shown: number of alternatives to record with each token of the answer. A verdict uses only the alternatives that
            it needs.
    """

    draft_length: int | None = None
    max_ahead: int | None = None
    leases: bool = False
    needs: Needs = field(default_factory=Needs)
    places: tuple[int, ...] = ()
    watched: frozenset[int] = frozenset()
    questions_only: frozenset[int] = frozenset()
    shown: int = 0

    @property
    def listed(self) -> int:
        """The number of other tokens that a draft lists with each token, for the verifier and the record."""
        return max(self.needs.draft_alternatives, self.shown)

    @property
    def states(self) -> bool:
        """Test whether the draft has to report its hidden states."""
        return bool(self.needs.draft_states)


@dataclass(slots=True)
class Rate:
    """The rate at which drafts are replaced, in all answers of a fusion. It affects only the cost.

    Attributes:
        tokens: number of tokens of the answers.
        replacements: number of replacements in them.
    """

    tokens: int = 0
    replacements: int = 0

    def between(self, tokens: int = 0, replacements: int = 0) -> float:
        """The average number of tokens between two replacements, an answer in progress included."""
        tokens, replacements = self.tokens + tokens, self.replacements + replacements
        return (tokens + _RESTARTS * _BETWEEN) / (replacements + _RESTARTS)

    def add(self, tokens: int, replacements: int) -> None:
        """Add a complete answer."""
        self.tokens, self.replacements = self.tokens + tokens, self.replacements + replacements
