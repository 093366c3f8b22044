"""Collaborative Speculative Decoding (Algorithm 1) as a state machine that does no I/O.

Events go in: a draft token came (`drafted`), the draft ended (`draft_ended`), an assistant answered (`answered`), one
of them failed. Commands come out: draft from here, ask an assistant there, cancel, emit, finish, fail. Which text
comes out does not depend on the order or the timing of the events, on how much is drafted ahead, or on how questions
are batched: every verdict is a function of the text before its unit, and nothing else.

A replacement is put into the text as soon as its unit is judged, even while an earlier unit still waits: if that
one is replaced later, all that follows it is thrown away, as Algorithm 1 does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cosd_api.alignment import LONGEST, Unit, starts_unit
from cosd_api.decoding.commands import (
    DRAFT,
    Ask,
    CancelAsk,
    CancelDraft,
    Command,
    Emit,
    Fail,
    Finish,
    Placed,
    StartDraft,
)
from cosd_api.decoding.pending import Pending, Verdict
from cosd_api.decoding.response import Response
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Token


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
        self._pending: deque[Pending] = deque()
        self._draft: int | None = None  # the draft under way
        self._drafts = 0
        self._continuation: Any = None
        self._draft_error: Exception | None = None  # the draft broke behind everything that is pending
        self._failed = False
        self._own = 0  # index of the first token that the draft wrote since the start or the last replacement
        self._asks: dict[int, tuple[int, list[tuple[Pending, Verdict]]]] = {}
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
            unit.finish(self.assistants, self._contestable)
            unit = None
        if unit is None:
            unit = Pending(len(self.response.text), len(self.response.tokens))
            self._pending.append(unit)
        unit.tokens.append(token)
        self.response.place(Placed(token))
        if self.response.over or self.unit == "token" or token.end or len(unit.tokens) == LONGEST:
            unit.finish(self.assistants, self._contestable)
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
                unit.finish(self.assistants, self._contestable)
        return self._proceed([])

    def draft_failed(self, draft: int, error: Exception) -> list[Command]:
        """The draft under way broke: an error once everything before is settled and the answer is to go on."""
        if draft != self._draft:
            return []
        self._draft, self._draft_error = None, error
        return self._proceed([])

    def answered(self, ask: int, proposals: Sequence[Proposal | None]) -> list[Command]:
        """An assistant answered; `proposals` are in the order of the questions."""
        if ask not in self._asks:
            return []
        assistant, asked = self._asks.pop(ask)
        commands: list[Command] = []
        for (unit, verdict), proposal in zip(asked, proposals, strict=True):
            verdict.asked = False
            if unit.resolved or verdict.done or unit not in self._pending:
                continue  # void since, or by an answer just before this one
            unit.hear(assistant, proposal, self.verifier.fires, self._contestable, self.unit)
            if unit.heard:
                self._resolve(unit, commands)
            elif verdict.replacement:
                self._void_after(unit, commands)
        return self._proceed(commands)

    def ask_failed(self, ask: int, error: Exception) -> list[Command]:
        """A request to an assistant broke: an error once its first question is what the answer waits for.

        It was sent early, perhaps for text that will never stand: so whether an answer succeeds does not depend
        on timing, several questions that failed together are asked again one by one.
        """
        if ask not in self._asks:
            return []
        _, asked = self._asks.pop(ask)
        for _, verdict in asked:
            verdict.asked = False
            verdict.alone = True
            verdict.error = error if len(asked) == 1 else None
        return self._proceed([])

    # --- verdicts ---

    def _contestable(self, tokens: Sequence[Token]) -> bool:
        """Whether an answer about these tokens could change the text."""
        if not self.skip:
            return bool(tokens)
        contestable = self.verifier.contestable
        return any(token.prob is not None and contestable(token.prob) for token in tokens)

    def _resolve(self, unit: Pending, commands: list[Command]) -> None:
        """All assistants have judged the unit: of those that fire, the surest replaces; ties go to the first."""
        unit.resolved = True
        for place, token in enumerate(self.response.tokens[unit.first : unit.first + len(unit.tokens)]):
            token.asked = True
            token.decisions = unit.decisions(place, place + 1)
        winner = unit.winner
        if winner is not None:
            self._replace(unit, winner, commands)

    def _replace(self, unit: Pending, winner: Verdict, commands: list[Command]) -> None:
        """Algorithm 1, lines 11 to 13: keep what stands before, put the assistant's word, draft again from there."""
        decision = winner.decisions[-1]
        self._void_after(unit, commands)
        self.response.cut_back(unit.first + decision.first)
        decisions = unit.decisions(decision.first, decision.last)
        replaced = tuple(unit.tokens[decision.first : decision.last])
        for token in winner.replacement:
            self.response.place(Placed(token, decision.assistant, True, decisions, decision, replaced))
            replaced = ()
            if self.response.over:
                break
        self._own = len(self.response.tokens)
        unit.replaced = decision.last - decision.first
        unit.drafted_on = self.response.over is None

    def _void_after(self, unit: Pending, commands: list[Command]) -> None:
        """Whatever was drafted after the unit will be thrown away: so it is now, and nobody is asked about it."""
        self._cancel_draft(commands)
        self._continuation = self._draft_error = None
        while self._pending[-1] is not unit:
            self._pending.pop()
        self.response.cut_back(unit.first + len(unit.tokens))
        waiting = {id(unit) for unit in self._pending if unit.waiting}
        for ask, (_, asked) in list(self._asks.items()):
            if not any(id(unit) in waiting and not verdict.done for unit, verdict in asked):
                del self._asks[ask]
                commands.append(CancelAsk(ask))

    # --- commands ---

    def _proceed(self, commands: list[Command]) -> list[Command]:
        """What is to be done as things stand now."""
        if self.finished or self._failed:
            return []
        self._settle(commands)
        if self.response.over and not self._pending:
            self._finish(commands)
            return commands
        error = self._error()
        if error is not None:
            self._failed = True
            commands.append(Fail(error))
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
            self.counts.replaced += unit.replaced
            self.counts.replacements += unit.replaced > 0
            self.counts.iterations += unit.drafted_on
            self.counts.unanswered += sum(verdict.unanswered for verdict in unit.verdicts)
        if not (self.response.over and not self._pending):  # else all goes out with the end
            tokens = self.response.settle(end)
            if tokens:
                commands.append(Emit(tokens))

    def _finish(self, commands: list[Command]) -> None:
        self.finished = self.response.over
        assert self.finished is not None
        tokens = self.response.finish()
        self.counts.kept = sum(one.source == DRAFT for one in self.response.tokens)
        if tokens:
            commands.append(Emit(tokens))
        commands.append(self.finished)

    def _error(self) -> Exception | None:
        """What failed, if the first thing that the answer waits for is that."""
        if self._pending and self._pending[0].waiting:
            return self._pending[0].error
        return self._draft_error

    def _start_draft(self, commands: list[Command]) -> None:
        """Drafts on, unless a draft is under way or enough is drafted ahead of what is settled."""
        response = self.response
        if self._draft is not None or response.over or self._draft_error is not None:
            return
        if self._pending and self._pending[-1].doomed and self._pending[-1].waiting:
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
            asked = [(unit, unit.verdicts[assistant]) for unit in self._pending if unit.waiting]
            asked = [(unit, verdict) for unit, verdict in asked if verdict.open]
            if any(verdict.alone for _, verdict in asked):
                asked = asked[:1]
            if not asked:
                continue
            for _, verdict in asked:
                verdict.asked = True
            self._asked += 1
            self._asks[self._asked] = (assistant, asked)
            last = asked[-1][0]
            text = bytes(self.response.text[: self.response.end_of(last.first + len(last.tokens))])
            questions = tuple(unit.question(assistant, self.unit) for unit, _ in asked)
            commands.append(Ask(self._asked, assistant, text, questions))

    def _open_unit(self) -> Pending | None:
        unit = self._pending[-1] if self._pending else None
        return None if unit is None or unit.complete else unit

    def _cancel_draft(self, commands: list[Command]) -> None:
        if self._draft is not None:
            commands.append(CancelDraft(self._draft))
            self._draft = None
