"""Collaborative Speculative Decoding (Algorithm 1) as a state machine that does no I/O.

Events go in: a draft token came (`drafted`), the draft ended (`draft_ended`), an assistant answered (`answered`).
Commands come out: draft from here, ask an assistant there, cancel, emit these tokens, finish. Which text comes out
does not depend on the order or the timing of the events, on how much is drafted ahead, or on how questions are
batched: every verdict is a function of the text before its unit, and nothing else.

A replacement is put into the text as soon as its unit is judged, even while an earlier unit still waits: if that
one is replaced later, all that follows it is thrown away, as Algorithm 1 does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cosd_api.alignment import LONGEST, Decision, Unit, judge, starts_unit
from cosd_api.decoding.commands import (
    DRAFT,
    Ask,
    CancelAsk,
    CancelDraft,
    Command,
    Emit,
    Finish,
    Placed,
    StartDraft,
)
from cosd_api.decoding.response import Response
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Question, Token


@dataclass(slots=True)
class _Judge:
    """How far one assistant has judged one unit."""

    at: int = 0  # index of the unit's token that its next question is about
    asked: bool = False
    done: bool = False
    decisions: list[Decision] = field(default_factory=list[Decision])
    replacement: tuple[Token, ...] = ()


@dataclass(slots=True, eq=False)
class _Pending:
    """A unit that waits for its verdict, or the replacement that took its place."""

    start: int  # byte offset in the response
    first: int  # index of its first token in the response
    tokens: list[Token] = field(default_factory=list[Token])
    complete: bool = False
    judges: list[_Judge] = field(default_factory=list[_Judge])
    resolved: bool = False
    replaced: int = 0  # draft tokens that a replacement took away
    drafted_on: bool = False  # after that replacement

    @property
    def waiting(self) -> bool:
        """Whether an assistant still has to be heard."""
        return self.complete and not self.resolved


@dataclass(slots=True)
class Counts:
    """What is counted while units settle (see `FusionResult`)."""

    kept: int = 0
    replaced: int = 0
    replacements: int = 0
    iterations: int = 1
    unanswered: int = 0


class CoSD:
    """One fused answer in the making.

    Args:
        verifier: the rule or the tree.
        unit: what is judged together, `"token"` or `"word"`.
        assistants: how many there are.
        max_tokens: the answer's length at most, its end of sequence included.
        stop: strings (as UTF-8) before which the answer ends.
        draft_length: the paper's fixed rounds of K tokens; None drafts on without rounds.
        max_ahead: how many tokens may be drafted beyond what is settled; an open unit is always completed.
        in_flight: requests to one assistant at a time, at most.
        skip: leave out questions whose answers cannot matter.

    Attributes:
        response: the answer so far.
        counts: what was counted so far.
        finished: how the answer ended, once it is complete.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        unit: Unit,
        max_tokens: int,
        assistants: int = 1,
        stop: Sequence[bytes] = (),
        draft_length: int | None = None,
        max_ahead: int | None = None,
        in_flight: int = 2,
        skip: bool = True,
    ) -> None:
        self.verifier = verifier
        self.unit: Unit = unit
        self.assistants = assistants
        self.draft_length = draft_length
        self.max_ahead = max_ahead
        self.in_flight = in_flight
        self.skip = skip

        self.response = Response(max_tokens, stop)
        self.counts = Counts()
        self.finished: Finish | None = None
        self._pending: deque[_Pending] = deque()
        self._draft: int | None = None  # the draft under way
        self._drafts = 0
        self._continuation: Any = None
        self._own = 0  # index of the first token that the draft wrote since the start or the last replacement
        self._asks: dict[int, tuple[int, list[tuple[_Pending, _Judge]]]] = {}
        self._asked = 0

    # --- events ---

    def start(self) -> list[Command]:
        """The first commands."""
        return self._proceed([])

    def drafted(self, draft: int, token: Token) -> list[Command]:
        """The draft under way wrote one more token."""
        if draft != self._draft or self.response.over:
            return []
        unit = self._open_unit()
        if unit is not None and starts_unit(self.unit, unit.tokens, token):
            self._complete(unit)
            unit = None
        if unit is None:
            unit = _Pending(len(self.response.text), len(self.response.tokens))
            self._pending.append(unit)
        unit.tokens.append(token)
        self.response.place(Placed(token))
        if self.response.over or self.unit == "token" or token.end or len(unit.tokens) == LONGEST:
            self._complete(unit)
        commands: list[Command] = []
        if self.response.stopped:  # what would follow a stop string is never judged
            self._cancel_draft(commands)
        return self._proceed(commands)

    def draft_ended(self, draft: int, end: DraftEnd) -> list[Command]:
        """The draft under way gave its last token."""
        if draft != self._draft:
            return []
        self._draft, self._continuation = None, end.continuation
        if not self.response.over and end.reason in ("context", "filter"):
            context = end.reason == "context"
            self.response.over = Finish("length", "context") if context else Finish("content_filter", "content_filter")
            unit = self._open_unit()
            if unit is not None:
                self._complete(unit)
        return self._proceed([])

    def answered(self, ask: int, proposals: Sequence[Proposal | None]) -> list[Command]:
        """An assistant answered; `proposals` are in the order of the questions."""
        if ask not in self._asks:
            return []
        assistant, asked = self._asks.pop(ask)
        commands: list[Command] = []
        for (unit, verdict), proposal in zip(asked, proposals, strict=True):
            verdict.asked = False
            if unit.resolved or unit not in self._pending:
                continue  # thrown away since, or by an answer just before this one
            self._hear(unit, verdict, assistant, proposal)
            if all(verdict.done for verdict in unit.judges):
                self._resolve(unit, commands)
        return self._proceed(commands)

    # --- verdicts ---

    def _complete(self, unit: _Pending) -> None:
        """The unit's last token is there: whoever could change it has to be asked."""
        unit.complete = True
        unit.judges = [_Judge() for _ in range(self.assistants)]
        unit.resolved = not self._contestable(unit.tokens)

    def _contestable(self, tokens: Sequence[Token]) -> bool:
        """Whether an answer about these tokens could change the text."""
        if not self.skip:
            return bool(tokens)
        contestable = self.verifier.contestable
        return any(token.prob is not None and contestable(token.prob) for token in tokens)

    def _hear(self, unit: _Pending, verdict: _Judge, assistant: int, proposal: Proposal | None) -> None:
        if proposal is None:
            self.counts.unanswered += 1
        chain = () if proposal is None else proposal.tokens
        fires = self.verifier.fires
        judgement = judge(unit.tokens, chain, fires, unit=self.unit, first=verdict.at, assistant=assistant)
        verdict.decisions.extend(judgement.decisions)
        verdict.replacement = judgement.replacement
        if judgement.again is not None and self._contestable(unit.tokens[judgement.again :]):
            verdict.at = judgement.again
        else:
            verdict.done = True

    def _resolve(self, unit: _Pending, commands: list[Command]) -> None:
        """All assistants have judged the unit: of those that fire, the surest replaces; ties go to the first."""
        unit.resolved = True
        for place, token in enumerate(self.response.tokens[unit.first : unit.first + len(unit.tokens)]):
            token.asked = True
            token.decisions = _between(unit, place, place + 1)
        firing = [verdict for verdict in unit.judges if verdict.replacement]
        if firing:
            self._replace(unit, max(firing, key=lambda verdict: verdict.decisions[-1].q or 0.0), commands)

    def _replace(self, unit: _Pending, winner: _Judge, commands: list[Command]) -> None:
        """Algorithm 1, lines 11 to 13: keep what stands before, put the assistant's word, draft again from there."""
        decision = winner.decisions[-1]
        self._cancel_draft(commands)
        self._continuation = None
        while self._pending[-1] is not unit:
            self._pending.pop()
        self._cancel_asks(commands)
        self.response.cut_back(unit.first + decision.first)
        decisions = _between(unit, decision.first, decision.last)
        replaced = tuple(unit.tokens[decision.first : decision.last])
        for token in winner.replacement:
            self.response.place(Placed(token, decision.assistant, True, decisions, replaced))
            replaced = ()
            if self.response.over:
                break
        self._own = len(self.response.tokens)
        unit.replaced = decision.last - decision.first
        unit.drafted_on = self.response.over is None

    # --- commands ---

    def _proceed(self, commands: list[Command]) -> list[Command]:
        """What is to be done as things stand now."""
        if self.finished:
            return []
        self._settle(commands)
        if self.response.over and not self._pending:
            self.finished = self.response.over
            commands += (Emit(self.response.finish()), self.finished)
            return commands
        self._start_draft(commands)
        self._ask(commands)
        return commands

    def _settle(self, commands: list[Command]) -> None:
        """What stands before every open verdict is final."""
        if not (self._pending and self._pending[0].resolved):
            return
        end = 0
        while self._pending and self._pending[0].resolved:
            unit = self._pending.popleft()
            end = self._pending[0].first if self._pending else len(self.response.tokens)
            self.counts.kept += sum(one.source == DRAFT for one in self.response.tokens[unit.first : end])
            self.counts.replaced += unit.replaced
            self.counts.replacements += unit.replaced > 0
            self.counts.iterations += unit.drafted_on
        if not (self.response.over and not self._pending):  # else all goes out with the end
            tokens = self.response.settle(end)
            if tokens:
                commands.append(Emit(tokens))

    def _start_draft(self, commands: list[Command]) -> None:
        """Drafts on, unless a draft is under way or enough is drafted ahead of what is settled."""
        response = self.response
        if self._draft is not None or response.over:
            return
        most = response.max_tokens - len(response.tokens)
        waiting = any(unit.waiting for unit in self._pending)
        if self.draft_length is not None:
            if waiting:
                return
            most = min(most, self.draft_length)
        if self.max_ahead is not None:
            ahead = len(response.tokens) - response.settled
            # A half-empty window is refilled at once, not token by token; an open unit must always go on.
            if waiting and ahead > self.max_ahead // 2:
                return
            most = min(most, max(1, self.max_ahead - ahead))
        self._drafts += 1
        self._draft = self._drafts
        own = tuple(placed.token.data for placed in response.tokens[self._own :])
        commands.append(StartDraft(self._draft, bytes(response.text), most, self._continuation, own))

    def _ask(self, commands: list[Command]) -> None:
        """Asks each assistant everything that could matter, in one request, if not too many are under way."""
        if self.draft_length is not None and self._draft is not None:
            return  # fixed rounds: first the whole round, then its verification
        for assistant in range(self.assistants):
            if sum(of == assistant for of, _ in self._asks.values()) >= self.in_flight:
                continue
            units = [unit for unit in self._pending if unit.waiting]
            asked = [(unit, unit.judges[assistant]) for unit in units]
            asked = [(unit, verdict) for unit, verdict in asked if not (verdict.done or verdict.asked)]
            if not asked:
                continue
            for _, verdict in asked:
                verdict.asked = True
            self._asked += 1
            self._asks[self._asked] = (assistant, asked)
            last = asked[-1][0]
            text = bytes(self.response.text[: self.response.end_of(last.first + len(last.tokens))])
            questions = tuple(self._question(unit, verdict.at) for unit, verdict in asked)
            commands.append(Ask(self._asked, assistant, text, questions))

    def _question(self, unit: _Pending, at: int) -> Question:
        start = unit.start + sum(len(token.data) for token in unit.tokens[:at])
        return Question(start, tuple(token.data for token in unit.tokens[at:]), self.unit == "word")

    def _open_unit(self) -> _Pending | None:
        unit = self._pending[-1] if self._pending else None
        return None if unit is None or unit.complete else unit

    def _cancel_draft(self, commands: list[Command]) -> None:
        if self._draft is not None:
            commands.append(CancelDraft(self._draft))
            self._draft = None

    def _cancel_asks(self, commands: list[Command]) -> None:
        """Cancels the requests none of whose units waits any more."""
        waiting = {id(unit) for unit in self._pending if unit.waiting}
        for ask, (_, asked) in list(self._asks.items()):
            if not any(id(unit) in waiting for unit, _ in asked):
                del self._asks[ask]
                commands.append(CancelAsk(ask))


def _between(unit: _Pending, first: int, last: int) -> tuple[Decision, ...]:
    """What was decided about the unit's tokens `first` to `last` (one past)."""
    decisions = (decision for verdict in unit.judges for decision in verdict.decisions)
    return tuple(decision for decision in decisions if decision.first < last and decision.last > first)
