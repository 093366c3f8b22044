"""The units of an answer that wait for their verdicts: the draft's tokens, and what each assistant said of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from cosd_api.alignment import Decision, Unit, judge, most_probable
from cosd_api.decoding.commands import Placed
from cosd_api.verification import Place, Verifier, alternatives_of, decides_by_place, needs_q, tie_of, verifier_at
from cosd_providers.contract import Proposal, Question, Token

Contestable = Callable[[Sequence[Token], int], bool]
"""True for tokens, the first of them at a byte offset in the response, about which an answer could change the text."""


class UnitVerifier:
    """A verifier, as the units of one answer ask it.

    Args:
        verifier: the rule or the tree, say.
        prompt: the digest of a `Place`.
        unit: what is judged together.
        skip: leave out questions whose answers cannot matter.
        tie: as in `alignment.judge`. A verifier that replaces whatever differs has none: what stands is the
            assistant's own text.
    """

    def __init__(self, verifier: Verifier, prompt: bytes, unit: Unit, *, skip: bool, tie: float = 0.0) -> None:
        self.unit: Unit = unit
        self.needs_q = needs_q(verifier)
        self._verifier = verifier
        self._prompt = prompt
        self._skip = skip
        self._by_place = decides_by_place(verifier)
        self.tie = tie_of(verifier, tie)
        self._listed = unit == "token" and alternatives_of(verifier) > 0

    def contestable(self, tokens: Sequence[Token], start: int) -> bool:
        """True if an assistant is to be asked about these tokens, the first of them at a byte offset."""
        return self.could_change(tokens, start) if self._skip else bool(tokens)

    def could_change(self, tokens: Sequence[Token], start: int) -> bool:
        """True if an answer about these tokens, the first of them at a byte offset, could change the text."""
        here = self._verifier
        for token in tokens:
            if self._by_place:
                here = verifier_at(self._verifier, Place(self._prompt, start, token=token))
                start += len(token.data)
            if token.prob is None:
                if token.id is not None:  # a part of a character, whose probability the server did not show
                    return True
            elif here.contestable(token.prob):
                return True
        return False

    @property
    def ever(self) -> bool:
        """False if it is known that no answer of an assistant could change any text."""
        return not self._skip or self._by_place or self._verifier.contestable(0.0)

    def place(self, unit: DraftUnit, decision: Decision, proposal: Sequence[Token]) -> Place | None:
        """The place of a decision; None if the verifier looks at none."""
        if not (self._by_place or self._listed):
            return None
        token = unit.tokens[decision.first]
        known = most_probable(token, proposal[0]) if self._listed else None
        return Place(self._prompt, unit.offset(decision.first), draft_q=known, token=token)

    def at(self, place: Place | None) -> Verifier:
        """The verifier that decides there."""
        return self._verifier if place is None else verifier_at(self._verifier, place)


class Hearing(Enum):
    """The state of one assistant at one unit."""

    OPEN = auto()  # it is to be asked
    ASKED = auto()  # a question is in progress
    WATCHED = auto()  # a watch answers it
    FAILED = auto()  # a question about this unit alone failed
    DONE = auto()  # it has judged the unit, or its judgement cannot matter any more
    LOST = auto()  # it failed for good, and the answer continues without it
    WITHOUT_P = auto()  # it differs, and the draft is to be asked how probable its own token is


@dataclass(slots=True)
class Verdict:
    """The answers of one assistant about one unit so far.

    Attributes:
        hearing: its state.
        at: index of the unit's token that its next question is about.
        alone: its question failed together with others, and is to be asked again by itself.
        error: why it failed or was lost.
        decisions: in the order of the text.
        replacement: its word, if the verifier replaces.
        unanswered: how often it had no answer.
        ties: how often the draft's token stood because it was as probable to the assistant as its own.
        pending: what it proposed instead of a token whose probability the draft is asked for.
        ask: number of the question that brought it.
    """

    hearing: Hearing = Hearing.OPEN
    at: int = 0
    alone: bool = False
    error: Exception | None = None
    decisions: tuple[Decision, ...] = ()
    replacement: tuple[Token, ...] = ()
    unanswered: int = 0
    ties: int = 0
    pending: Proposal | None = None
    ask: int = 0

    @property
    def done(self) -> bool:
        """True if nothing more is asked of this assistant here."""
        return self.hearing is Hearing.DONE or self.hearing is Hearing.LOST


class State(Enum):
    """The state of a unit."""

    GROWING = auto()  # its next token may still belong to it
    WAITING = auto()  # an assistant has to be heard
    JUDGED = auto()  # nobody has to be heard any more: it stands, or its replacement does
    VOID = auto()  # it was thrown away behind a replacement


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
    """Draft tokens that are judged together, or the replacement that took their place.

    Attributes:
        start: byte offset in the response.
        first: index of its first token in the response.
        tokens: the draft's tokens.
        state: how far it has come.
        verdicts: one for each assistant, if any has to be heard.
        replaced: how many draft tokens a replacement took away.
        drafted_on: whether drafting restarts behind it.
        ahead: what the answer may continue from once it is judged, as far as the schedule has worked it out.
        p_asked: the draft was asked how probable its token is.
        p_error: why it could not say.
    """

    start: int
    first: int
    tokens: list[Token]
    state: State = State.GROWING
    verdicts: Sequence[Verdict] = ()
    replaced: int = 0
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
        """True if an assistant replaces something in it: then all that follows will be thrown away."""
        return any(verdict.replacement for verdict in self.verdicts)

    @property
    def lacks_p(self) -> bool:
        """True while the draft is asked how probable its token is."""
        return any(verdict.hearing is Hearing.WITHOUT_P for verdict in self.verdicts)

    @property
    def winner(self) -> Verdict | None:
        """The most confident of those that replace; ties go to the first listed."""
        replacing = [verdict for verdict in self.verdicts if verdict.replacement]
        return max(replacing, key=lambda verdict: verdict.decisions[-1].q or 0.0, default=None)

    @property
    def asked(self) -> bool:
        """True if any assistant was asked; those that were lost before were not."""
        return any(verdict.hearing is not Hearing.LOST or verdict.error is not None for verdict in self.verdicts)

    @property
    def settled_tokens(self) -> int:
        """Number of its first tokens that every assistant still to be heard has left as they are."""
        return min((verdict.at for verdict in self.verdicts if not verdict.done), default=0)

    def complete(self, assistants: int, contestable: Contestable, lost: Container[int]) -> None:
        """Close it behind its last token: all assistants but the `lost` have to be heard if they could change it."""
        self.state = State.JUDGED
        if contestable(self.tokens, self.start):
            self.state = State.WAITING
            self.verdicts = [Verdict(Hearing.LOST if at in lost else Hearing.OPEN) for at in range(assistants)]

    def offset(self, at: int) -> int:
        """Byte offset in the response of one of its tokens, by index."""
        return self.start + sum(len(token.data) for token in self.tokens[:at])

    def question(self, assistant: int, unit: Unit) -> Question:
        """The next question to an assistant."""
        at = self.verdicts[assistant].at
        return Question(self.offset(at), tuple(token.data for token in self.tokens[at:]), unit == "word")

    def hear(self, assistant: int, proposal: Proposal | None, verifier: UnitVerifier, ask: int) -> None:
        """Judge what an assistant proposed in answer to question `ask`; None if it had no answer."""
        proposed = () if proposal is None else proposal.tokens
        strategy = None if proposal is None else proposal.strategy

        def replaces(decision: Decision) -> bool:
            p, q = decision.p, decision.q
            here = verifier.at(verifier.place(self, decision, proposed))
            return p is not None and here.replaces(p, math.nan if q is None else q)

        verdict = self.verdicts[assistant]
        verdict.unanswered += proposal is None
        judgement = judge(
            self.tokens,
            proposed,
            replaces,
            unit=verifier.unit,
            first=verdict.at,
            assistant=assistant,
            needs_q=verifier.needs_q,
            tie=verifier.tie,
        )
        if self._lacks_p(judgement.decisions):
            verdict.pending, verdict.ask, verdict.hearing = proposal, ask, Hearing.WITHOUT_P
            return
        self.ahead = None  # more is known now
        for decision in judgement.decisions:
            verdict.ties += decision.tied
            decision.ask, decision.strategy = ask, strategy
            if (place := verifier.place(self, decision, proposed)) is not None:
                decision.coin, decision.draft_q = getattr(verifier.at(place), "coin", None), place.draft_q
        verdict.decisions += judgement.decisions
        verdict.replacement = judgement.replacement
        again = judgement.again
        if again is not None and verifier.contestable(self.tokens[again:], self.offset(again)):
            verdict.at = again
        else:
            verdict.hearing = Hearing.DONE
        if judgement.replacement and judgement.decisions[-1].q == 1:
            for later in self.verdicts[assistant + 1 :]:  # nobody is more confident, and ties go to the first listed
                if later.hearing is not Hearing.LOST:
                    later.hearing = Hearing.DONE

    def _lacks_p(self, decisions: Sequence[Decision]) -> bool:
        """True if a difference cannot be judged before the draft says how probable its token is."""
        return (
            any(one.p is None and not one.agreed for one in decisions)
            and self.tokens[0].id is not None
            and not self.p_asked
        )

    def learn(self, proposal: Proposal | None) -> None:
        """Take the draft model's answer about its own token; without the token in it, `p` stays unknown."""
        self.p_asked = True
        token = self.tokens[0]
        for one in () if proposal is None else (proposal.tokens[0], *proposal.tokens[0].alternatives):
            if one.id == token.id:
                self.tokens[0] = replace(token, prob=one.prob)

    def unheard(self, could_change: Contestable) -> int:
        """Index of its first token that a lost assistant could have changed; `len(tokens)` without such."""
        winner = self.winner
        last = len(self.verdicts)
        if winner is not None and winner.decisions[-1].q == 1:  # nobody listed later could have been more confident
            last = self.verdicts.index(winner)
        lost = (verdict.at for verdict in self.verdicts[:last] if verdict.hearing is Hearing.LOST)
        return min((at for at in lost if could_change(self.tokens[at:], self.offset(at))), default=len(self.tokens))

    def replacement(self, winner: Verdict, *, verified: bool, draft: int, at: float) -> list[Placed]:
        """The winner's word as tokens of the response; `draft` wrote what it replaces."""
        decision = winner.decisions[-1]
        decisions = self.decisions(decision.first, decision.last)
        word = [
            Placed(token, decision.assistant, True, decisions, decision, verified=verified, draft=draft, at=at)
            for token in winner.replacement
        ]
        word[0].replaced = tuple(self.tokens[decision.first : decision.last])
        return word

    def decisions(self, first: int, last: int) -> tuple[Decision, ...]:
        """The decisions about its tokens `first` to `last` (one past)."""
        about = [
            decision
            for verdict in self.verdicts
            for decision in verdict.decisions
            if decision.first < last and decision.last > first
        ]
        return tuple(about)
