"""Draft tokens that wait for their verdicts, and the assistants' answers about these tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from cosd_api.alignment import Decision, judge, most_probable
from cosd_api.decoding.commands import Placed
from cosd_api.verification import Place, Verifier, coin_of, decides_by_place, needs_of, tie_of, verifier_at
from cosd_providers.contract import Proposal, Question, Token

Contestable = Callable[[Token, int], bool]
"""A function that returns whether an answer about a token, at a byte offset in the response, could change the text."""


class UnitVerifier:
    """A verifier, with the settings that it needs to judge the units of one answer.

    Args:
        verifier: the verifier, such as the rule or a tree.
        prompt: digest of the prompt, as in `Place`.
        skip: whether to skip questions whose answers cannot change the text.
        tie: see `alignment.judge`. If the verifier replaces every differing token, ties are ignored, so that every
            token of the text is the assistant's own choice.
        listed: number of an assistant's other tokens that a verdict uses, even if the assistant lists more; None for
            all of them.
    """

    def __init__(
        self, verifier: Verifier, prompt: bytes, *, skip: bool, tie: float = 0.0, listed: int | None = None
    ) -> None:
        needs = needs_of(verifier)
        self.needs_q = needs.q
        self._verifier = verifier
        self._prompt = prompt
        self._skip = skip
        self._by_place = decides_by_place(verifier)
        self.tie = tie_of(verifier, tie)
        self._listed = needs.alternatives > 0
        self._most = listed

    def contestable(self, token: Token, start: int) -> bool:
        """Test whether an assistant has to be asked about a token that begins at byte `start`."""
        return not self._skip or self.could_change(token, start)

    def could_change(self, token: Token, start: int) -> bool:
        """Test whether an answer about a token that begins at byte `start` could change the text."""
        if token.prob is None:  # servers hide the probability of a part of a character, which has an id
            return token.id is not None
        here = self._verifier
        if self._by_place:
            here = verifier_at(self._verifier, Place(self._prompt, start, token=token))
        return here.contestable(token.prob)

    @property
    def ever(self) -> bool:
        """Test whether an assistant's answer could change any text at all."""
        return not self._skip or self._by_place or self._verifier.contestable(0.0)

    def seen(self, theirs: Token) -> Token:
        """An assistant's token with only those alternatives that a verdict uses."""
        if self._most is None or len(theirs.alternatives) <= self._most:
            return theirs
        return replace(theirs, alternatives=theirs.alternatives[: self._most])

    def place(self, unit: DraftUnit, theirs: Token) -> Place | None:
        """The place of a decision; None if the verifier does not use it."""
        if not (self._by_place or self._listed):
            return None
        known = most_probable(unit.token, theirs) if self._listed else None
        return Place(self._prompt, unit.start, draft_q=known, token=unit.token)

    def at(self, place: Place | None) -> Verifier:
        """The verifier that decides at a place."""
        return self._verifier if place is None else verifier_at(self._verifier, place)


class Hearing(Enum):
    """The state of one assistant at one unit."""

    OPEN = auto()  # the assistant has to be asked
    ASKED = auto()  # a question is in progress
    WATCHED = auto()  # a watch will answer
    FAILED = auto()  # a question about this unit alone failed
    DONE = auto()  # the assistant has judged the unit, or its judgement cannot matter any more
    LOST = auto()  # the assistant failed, and the answer continues without it
    WITHOUT_P = auto()  # the assistant differs, but the draft's probability is not known yet


@dataclass(slots=True)
class Verdict:
    """The progress of one assistant at one unit.

    Attributes:
        hearing: state of the assistant.
        alone: whether a request about several units failed; if so, the next request must be about this unit alone.
        error: the reason why the assistant failed or was lost.
        decision: the decision about the assistant's answer; None until the answer has arrived.
        replacement: the assistant's token, if the verifier chose it.
        unanswered: whether the assistant gave no answer.
        pending: the assistant's proposal, which waits while the draft is asked for the probability of its own token.
        ask: number of the question that `pending` answers.
    """

    hearing: Hearing = Hearing.OPEN
    alone: bool = False
    error: Exception | None = None
    decision: Decision | None = None
    replacement: Token | None = None
    unanswered: bool = False
    pending: Proposal | None = None
    ask: int = 0

    @property
    def done(self) -> bool:
        """Test whether this assistant will not be asked about the unit again."""
        return self.hearing is Hearing.DONE or self.hearing is Hearing.LOST


class State(Enum):
    """The state of a unit."""

    WAITING = auto()  # an assistant still has to judge the token
    JUDGED = auto()  # the token is kept or replaced
    VOID = auto()  # the token was thrown away after a replacement


_WAITING = State.WAITING  # a local name saves an attribute look-up for each unit at each event


@dataclass(slots=True)
class Ahead:
    """A text from which the answer may continue, with its ids; `tried` is True if a hedge was started from it."""

    text: bytes
    ids: tuple[int, ...] | None = None
    tried: bool = False

    @property
    def key(self) -> object:
        """A key that is equal for equal texts or, if ids are known, for equal ids."""
        return self.text if self.ids is None else self.ids


@dataclass(slots=True, eq=False)
class DraftUnit:
    """A draft token that is judged, or its replacement.

    Attributes:
        start: byte offset of the token in the response.
        first: index of the token in the response.
        token: the draft's token.
        state: state of the unit.
        verdicts: the verdict of each assistant; empty if no assistant has to judge the token.
        replaced: whether the token was replaced.
        drafted_on: whether drafting restarts after the unit.
        ahead: the texts from which the answer may continue after the verdict; None if they have to be computed again.
        p_asked: whether the draft was asked for the probability of its token.
        p_error: the error of the request for the probability, if the request failed.
    """

    start: int
    first: int
    token: Token
    state: State = State.JUDGED
    verdicts: Sequence[Verdict] = ()
    replaced: bool = False
    drafted_on: bool = False
    ahead: list[Ahead] | None = None
    p_asked: bool = False
    p_error: Exception | None = None

    @property
    def waiting(self) -> bool:
        """Test whether an assistant still has to judge the unit."""
        return self.state is _WAITING

    @property
    def heard(self) -> bool:
        """Test whether every assistant has judged the unit."""
        return all(verdict.done for verdict in self.verdicts)

    @property
    def contested(self) -> bool:
        """Test whether an assistant would replace the token; if so, all later tokens will be thrown away."""
        return any(verdict.replacement is not None for verdict in self.verdicts)

    @property
    def lacks_p(self) -> bool:
        """Test whether a verdict waits for the draft's probability for its own token."""
        return any(verdict.hearing is Hearing.WITHOUT_P for verdict in self.verdicts)

    @property
    def winner(self) -> Verdict | None:
        """The verdict of the most confident assistant that would replace the token; among equals, the first listed."""
        replacing = [verdict for verdict in self.verdicts if verdict.replacement is not None]
        return max(replacing, key=_q, default=None)

    @property
    def asked(self) -> bool:
        """Test whether any assistant was asked; assistants that had been lost before do not count."""
        return any(verdict.hearing is not Hearing.LOST or verdict.error is not None for verdict in self.verdicts)

    def complete(self, assistants: int, contestable: Contestable, lost: Container[int]) -> None:
        """Let the unit wait for all assistants except those in `lost`, if an assistant could change the unit."""
        if contestable(self.token, self.start):
            self.state = State.WAITING
            self.verdicts = [Verdict(Hearing.LOST if at in lost else Hearing.OPEN) for at in range(assistants)]

    @property
    def question(self) -> Question:
        """The question that asks an assistant about the unit."""
        return Question(self.start, (self.token.data,))

    def hear(self, assistant: int, proposal: Proposal | None, verifier: UnitVerifier, ask: int) -> None:
        """Judge an assistant's answer to the question `ask`; `proposal` is None if the assistant gave no answer."""
        verdict = self.verdicts[assistant]
        verdict.unanswered = proposal is None
        decision = None if proposal is None else self._judged(assistant, proposal, verifier)
        if decision is not None and decision.p is None and not decision.agreed and self._may_ask_p:
            verdict.pending, verdict.ask, verdict.hearing = proposal, ask, Hearing.WITHOUT_P
            return
        self.ahead = None  # to be computed again, because the assistant's answer changes the likely texts
        verdict.hearing, verdict.decision = Hearing.DONE, decision
        if decision is None or proposal is None:
            return
        decision.ask, decision.strategy = ask, proposal.strategy
        if (place := verifier.place(self, verifier.seen(proposal.tokens[0]))) is not None:
            decision.coin, decision.draft_q = coin_of(verifier.at(place)), place.draft_q
        verdict.replacement = proposal.tokens[0] if decision.fired else None
        if decision.fired and decision.q == 1:
            # No assistant can be more confident than this one, and the first of equally confident assistants wins.
            for later in self.verdicts[assistant + 1 :]:
                if later.hearing is not Hearing.LOST:
                    later.hearing = Hearing.DONE

    def _judged(self, assistant: int, proposal: Proposal, verifier: UnitVerifier) -> Decision:
        """The decision about an assistant's answer."""
        theirs = verifier.seen(proposal.tokens[0])

        def replaces(decision: Decision) -> bool:
            p, q = decision.p, decision.q
            return p is not None and verifier.at(verifier.place(self, theirs)).replaces(p, math.nan if q is None else q)

        return judge(self.token, theirs, replaces, assistant=assistant, needs_q=verifier.needs_q, tie=verifier.tie)

    @property
    def _may_ask_p(self) -> bool:
        """Test whether the draft can still be asked for the probability of its token."""
        return self.token.id is not None and not self.p_asked

    def learn(self, proposal: Proposal | None) -> None:
        """Set the probability of the draft's token to the one in the draft model's answer, if it lists the token."""
        self.p_asked = True
        for one in () if proposal is None else (proposal.tokens[0], *proposal.tokens[0].alternatives):
            if one.id == self.token.id:
                self.token = replace(self.token, prob=one.prob)

    def is_heard(self, could_change: Contestable) -> bool:
        """Test whether every assistant that could have changed the token has judged it."""
        winner, last = self.winner, len(self.verdicts)
        if winner is not None and _q(winner) == 1:  # no assistant later in the list could have won
            last = self.verdicts.index(winner)
        lost = any(verdict.hearing is Hearing.LOST for verdict in self.verdicts[:last])
        return not (lost and could_change(self.token, self.start))

    def replacement(self, winner: Verdict, *, verified: bool, draft: int, at: float) -> Placed:
        """The winner's token for the response; `draft` is the number of the draft whose token it replaces."""
        token, decision = winner.replacement, winner.decision
        assert token is not None
        assert decision is not None
        placed = Placed(
            token, decision.assistant, True, self.decisions, decision, verified=verified, draft=draft, at=at
        )
        placed.replaced = (self.token,)
        return placed

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions about the unit so far."""
        return tuple([verdict.decision for verdict in self.verdicts if verdict.decision is not None])


def _q(verdict: Verdict) -> float:
    """The assistant's probability for its own token; 0 if unknown."""
    return (verdict.decision.q if verdict.decision else None) or 0.0
