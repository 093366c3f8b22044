"""A unit that waits for its verdict: what was asked about it, what was heard, and who wins."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace

from cosd_api.alignment import Decision, Unit, judge
from cosd_api.decoding.commands import Placed
from cosd_api.verification import Verifier, needs_q
from cosd_providers.contract import Proposal, Question, Token

Contestable = Callable[[Sequence[Token]], bool]
"""Whether an answer about these tokens could change the text."""


@dataclass(frozen=True, slots=True)
class Loss:
    """An assistant that an answer goes on without.

    Attributes:
        token: index of the first token of the answer that it was not heard about.
        error: why.
        before: whether it was lost before the answer began.
    """

    token: int
    error: Exception
    before: bool = False


@dataclass(slots=True)
class Verdict:
    """How far one assistant has judged one unit.

    Attributes:
        at: index of the unit's token that its next question is about.
        asked: a question is under way.
        alone: its question failed together with others, and is asked again by itself.
        error: its question failed by itself.
        done: nothing more is asked of this assistant here.
        lost: it could not be heard from `at` on, and the answer goes on without it.
        decisions: what it said.
        replacement: its word, if the verifier fired.
        unanswered: how often it could not answer.
    """

    at: int = 0
    asked: bool = False
    alone: bool = False
    error: Exception | None = None
    done: bool = False
    lost: bool = False
    decisions: list[Decision] = field(default_factory=list[Decision])
    replacement: tuple[Token, ...] = ()
    unanswered: int = 0

    @property
    def open(self) -> bool:
        """Whether a question is to be asked."""
        return not (self.done or self.asked or self.error)


@dataclass(slots=True)
class Ahead:
    """A text that the answer may go on from; `tried`: a draft from there was started."""

    text: bytes
    tried: bool = False


@dataclass(slots=True, eq=False)
class Pending:
    """A unit that waits for its verdict, or the replacement that took its place.

    Attributes:
        start: byte offset in the response.
        first: index of its first token in the response.
        tokens: the draft's tokens.
        complete: its last token is there.
        verdicts: one for each assistant, once it is complete and somebody is to be heard.
        resolved: nobody needs to be heard any more.
        replaced: how many draft tokens a replacement took away.
        drafted_on: whether drafting went on after that replacement.
        void: it was thrown away, for a replacement before it.
        ahead: what the answer may go on from once it is judged, where that was worked out (`hedges.py`).
    """

    start: int
    first: int
    tokens: list[Token] = field(default_factory=list[Token])
    complete: bool = False
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    resolved: bool = False
    replaced: int = 0
    drafted_on: bool = False
    void: bool = False
    ahead: list[Ahead] | None = None

    @property
    def waiting(self) -> bool:
        """Whether an assistant still has to be heard."""
        return self.complete and not self.resolved

    @property
    def doomed(self) -> bool:
        """Whether an assistant has fired: somebody's word will stand here, and what follows is void."""
        return any(verdict.replacement for verdict in self.verdicts)

    @property
    def heard(self) -> bool:
        """Whether every assistant has judged it."""
        return all(verdict.done for verdict in self.verdicts)

    @property
    def winner(self) -> Verdict | None:
        """Of those that fire, the surest; ties go to the first listed."""
        firing = [verdict for verdict in self.verdicts if verdict.replacement]
        return max(firing, key=lambda verdict: verdict.decisions[-1].q or 0.0, default=None)

    @property
    def errors(self) -> list[tuple[int, Exception]]:
        """Questions that failed and without whose answers there is no verdict: which assistant's, and why."""
        undone = [(at, verdict.error) for at, verdict in enumerate(self.verdicts) if not verdict.done]
        return [(at, error) for at, error in undone if error is not None]

    @property
    def asked(self) -> bool:
        """Whether anybody was asked; not those that were lost before."""
        return any(not verdict.lost or verdict.error is not None for verdict in self.verdicts)

    def unheard(self, could_change: Contestable) -> int:
        """Index of its first token that a lost assistant could have changed; `len(tokens)` without such."""
        winner = self.winner
        last = len(self.verdicts)
        if winner is not None and winner.decisions[-1].q == 1:  # nobody listed later could have been surer
            last = self.verdicts.index(winner)
        lost = (verdict.at for verdict in self.verdicts[:last] if verdict.lost)
        return min((at for at in lost if could_change(self.tokens[at:])), default=len(self.tokens))

    def finish(self, assistants: int, contestable: Contestable, lost: Container[int]) -> None:
        """Its last token is there: whoever could change it, and is not `lost`, has to be asked."""
        self.complete = True
        self.resolved = not contestable(self.tokens)
        if not self.resolved:
            self.verdicts = [Verdict(done=at in lost, lost=at in lost) for at in range(assistants)]

    def question(self, assistant: int, unit: Unit) -> Question:
        """What the assistant is to be asked next."""
        at = self.verdicts[assistant].at
        start = self.start + sum(len(token.data) for token in self.tokens[:at])
        return Question(start, tuple(token.data for token in self.tokens[at:]), unit == "word")

    def hear(
        self,
        assistant: int,
        proposal: Proposal | None,
        verifier: Verifier,
        contestable: Contestable,
        unit: Unit,
        ask: int,
    ) -> None:
        """The assistant answered its question, with number `ask`; None says that it could not."""
        verdict = self.verdicts[assistant]
        verdict.unanswered += proposal is None
        chain = () if proposal is None else proposal.tokens
        judgement = judge(
            self.tokens,
            chain,
            verifier.replaces,
            unit=unit,
            first=verdict.at,
            assistant=assistant,
            needs_q=needs_q(verifier),
        )
        self.ahead = None  # more is known now
        strategy = proposal.strategy if proposal is not None else None
        verdict.decisions.extend(replace(decision, ask=ask, strategy=strategy) for decision in judgement.decisions)
        verdict.replacement = judgement.replacement
        if judgement.again is not None and contestable(self.tokens[judgement.again :]):
            verdict.at = judgement.again
        else:
            verdict.done = True
        if judgement.replacement and judgement.decisions[-1].q == 1:
            for later in self.verdicts[assistant + 1 :]:  # nobody is surer than that, and ties go to the first
                later.done = True

    def replacement(self, winner: Verdict, *, verified: bool, draft: int, at: float) -> list[Placed]:
        """The winner's word, as it is put into the response at a time; `draft` wrote what it replaces."""
        decision = winner.decisions[-1]
        decisions = self.decisions(decision.first, decision.last)
        word = [
            Placed(token, decision.assistant, True, decisions, decision, verified=verified, draft=draft, at=at)
            for token in winner.replacement
        ]
        word[0].replaced = tuple(self.tokens[decision.first : decision.last])
        return word

    def decisions(self, first: int, last: int) -> tuple[Decision, ...]:
        """What was decided about its tokens `first` to `last` (one past)."""
        decisions = (decision for verdict in self.verdicts for decision in verdict.decisions)
        return tuple(decision for decision in decisions if decision.first < last and decision.last > first)


@dataclass(slots=True)
class Counts:
    """What is counted while units settle (see `FusionResult`)."""

    kept: int = 0
    replaced: int = 0
    replacements: int = 0
    iterations: int = 1
    unanswered: int = 0
    units: int = 0

    def add(self, unit: Pending) -> None:
        """One more unit is settled."""
        self.units += 1
        self.replaced += unit.replaced
        self.replacements += unit.replaced > 0
        self.iterations += unit.drafted_on
        self.unanswered += sum(verdict.unanswered for verdict in unit.verdicts)
