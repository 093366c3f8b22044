"""The draft's tokens that wait for their verdicts, and the assistants' answers about them."""

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
"""True for a token, at a byte offset in the response, about which an answer could change the text."""


class UnitVerifier:
    """A verifier, with the settings by which the units of one answer use it.

    Args:
        verifier: the rule or the tree, say.
        prompt: the digest of a `Place`.
        skip: whether to leave out questions whose answers cannot matter.
        tie: as in `alignment.judge`. A verifier that replaces every differing token has no tie: the kept text is the
            assistant's own.
        listed: other tokens of an assistant's list that a verdict uses, even if the list is longer; None for all of it.
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
        """True if an assistant has to be asked about a token, at a byte offset."""
        return not self._skip or self.could_change(token, start)

    def could_change(self, token: Token, start: int) -> bool:
        """True if an answer about a token, at a byte offset, could change the text."""
        if token.prob is None:  # a token with an id is a part of a character, whose probability is not shown
            return token.id is not None
        here = self._verifier
        if self._by_place:
            here = verifier_at(self._verifier, Place(self._prompt, start, token=token))
        return here.contestable(token.prob)

    @property
    def ever(self) -> bool:
        """False if it is known that no answer of an assistant could change any text."""
        return not self._skip or self._by_place or self._verifier.contestable(0.0)

    def seen(self, theirs: Token) -> Token:
        """An assistant's token, with as much of its list as a verdict uses."""
        if self._most is None or len(theirs.alternatives) <= self._most:
            return theirs
        return replace(theirs, alternatives=theirs.alternatives[: self._most])

    def place(self, unit: DraftUnit, theirs: Token) -> Place | None:
        """The place of a decision; None if the verifier uses none."""
        if not (self._by_place or self._listed):
            return None
        known = most_probable(unit.token, theirs) if self._listed else None
        return Place(self._prompt, unit.start, draft_q=known, token=unit.token)

    def at(self, place: Place | None) -> Verifier:
        """The verifier that decides there."""
        return self._verifier if place is None else verifier_at(self._verifier, place)


class Hearing(Enum):
    """The state of one assistant at one unit."""

    OPEN = auto()  # it has to be asked
    ASKED = auto()  # a question is in progress
    WATCHED = auto()  # a watch answers it
    FAILED = auto()  # a question about only this unit failed
    DONE = auto()  # it has judged the unit, or its judgement cannot matter any more
    LOST = auto()  # it failed for good, and the answer continues without it
    WITHOUT_P = auto()  # it differs, and the draft has to be asked for the probability of its own token


@dataclass(slots=True)
class Verdict:
    """The answers of one assistant about one unit so far.

    Attributes:
        hearing: its state.
        alone: whether its question failed together with others, and has to be asked again by itself.
        error: the reason why it failed or was lost.
        decision: the decision from its answer, once it was heard.
        replacement: its token, if the verifier replaces.
        unanswered: whether it had no answer.
        pending: its proposal, while the draft is asked for the probability of its own token.
        ask: number of the question that brought the proposal.
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
        """True if this assistant is not asked again here."""
        return self.hearing is Hearing.DONE or self.hearing is Hearing.LOST


class State(Enum):
    """The state of a unit."""

    WAITING = auto()  # an assistant has to be heard
    JUDGED = auto()  # no assistant has to be heard any more: the token is kept or replaced
    VOID = auto()  # it was thrown away after a replacement


_WAITING = State.WAITING  # a look-up less, for each unit at each event


@dataclass(slots=True)
class Ahead:
    """A text that the answer may continue from, with its ids; `tried` if a hedge was started from there."""

    text: bytes
    ids: tuple[int, ...] | None = None
    tried: bool = False

    @property
    def key(self) -> object:
        """Equal for the same place to continue from."""
        return self.text if self.ids is None else self.ids


@dataclass(slots=True, eq=False)
class DraftUnit:
    """A draft token that is judged, or the replacement that took its place.

    Attributes:
        start: byte offset in the response.
        first: index of the token in the response.
        token: the draft's.
        state: its progress.
        verdicts: one for each assistant, if any has to be heard.
        replaced: whether a replacement took it away.
        drafted_on: whether drafting restarts after it.
        ahead: the texts from which the answer may continue once it is judged, as far as the schedule has computed them.
        p_asked: whether the draft was asked for the probability of its token.
        p_error: the failure of that request.
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
        """True if an assistant has to be heard."""
        return self.state is _WAITING

    @property
    def heard(self) -> bool:
        """True if every assistant has judged it."""
        return all(verdict.done for verdict in self.verdicts)

    @property
    def contested(self) -> bool:
        """True if an assistant replaces it: then all later tokens will be thrown away."""
        return any(verdict.replacement is not None for verdict in self.verdicts)

    @property
    def lacks_p(self) -> bool:
        """True while the draft is asked for the probability of its token."""
        return any(verdict.hearing is Hearing.WITHOUT_P for verdict in self.verdicts)

    @property
    def winner(self) -> Verdict | None:
        """The most confident of the verdicts that replace; ties go to the first listed."""
        replacing = [verdict for verdict in self.verdicts if verdict.replacement is not None]
        return max(replacing, key=_q, default=None)

    @property
    def asked(self) -> bool:
        """True if any assistant was asked; assistants that were lost before were not."""
        return any(verdict.hearing is not Hearing.LOST or verdict.error is not None for verdict in self.verdicts)

    def complete(self, assistants: int, contestable: Contestable, lost: Container[int]) -> None:
        """Let it wait if an assistant could change it: all but the `lost` have to be heard then."""
        if contestable(self.token, self.start):
            self.state = State.WAITING
            self.verdicts = [Verdict(Hearing.LOST if at in lost else Hearing.OPEN) for at in range(assistants)]

    @property
    def question(self) -> Question:
        """The question to an assistant."""
        return Question(self.start, (self.token.data,))

    def hear(self, assistant: int, proposal: Proposal | None, verifier: UnitVerifier, ask: int) -> None:
        """Judge an assistant's proposal in answer to question `ask`; `proposal` is None if it had no answer."""
        verdict = self.verdicts[assistant]
        verdict.unanswered = proposal is None
        decision = None if proposal is None else self._judged(assistant, proposal, verifier)
        if decision is not None and decision.p is None and not decision.agreed and self._may_ask_p:
            verdict.pending, verdict.ask, verdict.hearing = proposal, ask, Hearing.WITHOUT_P
            return
        self.ahead = None  # more is known now
        verdict.hearing, verdict.decision = Hearing.DONE, decision
        if decision is None or proposal is None:
            return
        decision.ask, decision.strategy = ask, proposal.strategy
        if (place := verifier.place(self, verifier.seen(proposal.tokens[0]))) is not None:
            decision.coin, decision.draft_q = coin_of(verifier.at(place)), place.draft_q
        verdict.replacement = proposal.tokens[0] if decision.fired else None
        if decision.fired and decision.q == 1:
            for later in self.verdicts[assistant + 1 :]:  # none is more confident, and ties go to the first listed
                if later.hearing is not Hearing.LOST:
                    later.hearing = Hearing.DONE

    def _judged(self, assistant: int, proposal: Proposal, verifier: UnitVerifier) -> Decision:
        """The decision that an assistant's answer leads to."""
        theirs = verifier.seen(proposal.tokens[0])

        def replaces(decision: Decision) -> bool:
            p, q = decision.p, decision.q
            return p is not None and verifier.at(verifier.place(self, theirs)).replaces(p, math.nan if q is None else q)

        return judge(self.token, theirs, replaces, assistant=assistant, needs_q=verifier.needs_q, tie=verifier.tie)

    @property
    def _may_ask_p(self) -> bool:
        """True if the draft can still report the probability of its token."""
        return self.token.id is not None and not self.p_asked

    def learn(self, proposal: Proposal | None) -> None:
        """Take the draft model's answer about its own token; without the token in it, `p` stays unknown."""
        self.p_asked = True
        for one in () if proposal is None else (proposal.tokens[0], *proposal.tokens[0].alternatives):
            if one.id == self.token.id:
                self.token = replace(self.token, prob=one.prob)

    def is_heard(self, could_change: Contestable) -> bool:
        """True if no assistant that could have changed it was lost."""
        winner, last = self.winner, len(self.verdicts)
        if winner is not None and _q(winner) == 1:  # no assistant listed later could have been more confident
            last = self.verdicts.index(winner)
        lost = any(verdict.hearing is Hearing.LOST for verdict in self.verdicts[:last])
        return not (lost and could_change(self.token, self.start))

    def replacement(self, winner: Verdict, *, verified: bool, draft: int, at: float) -> Placed:
        """The winner's token in the response; `draft` wrote the token that it replaces."""
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
        """The decisions about it."""
        return tuple([verdict.decision for verdict in self.verdicts if verdict.decision is not None])


def _q(verdict: Verdict) -> float:
    """An assistant's probability of its token; 0 if unknown."""
    return (verdict.decision.q if verdict.decision else None) or 0.0
