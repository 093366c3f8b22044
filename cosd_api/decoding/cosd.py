"""Collaborative Speculative Decoding (Algorithm 1) as a state machine that does no I/O.

Events go in: a draft token came (`drafted`), the draft ended (`draft_ended`), an assistant answered (`answered`), one
of them failed. Commands come out: draft from here, ask an assistant there, cancel, emit, finish, fail. Which text
comes out does not depend on the order or the timing of the events, on how much is drafted ahead, or on how questions
are batched: every verdict is a function of the text before its unit, and nothing else.

A replacement is put into the text as soon as its unit is judged, even while an earlier unit still waits: if that
one is replaced later, all that follows it is thrown away, as Algorithm 1 does.

With `hedge`, drafts are started ahead of a verdict from what the draft itself found nearly as probable (`hedges.py`).
Where a draft is to begin anew and one of them goes on from that very text, it is taken in its place.

An assistant that is lost (`survives`) is lost at one place of the text: the first one where it could not be heard. It
is asked nothing more, nothing counts that it may have said about later places, and the draft begins anew behind that
unit, as after a replacement. So the answer depends on where the assistant fails, and on no other timing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from cosd_api.alignment import LONGEST, Unit, starts_unit
from cosd_api.decoding.commands import DRAFT, Command, Emit, Fail, Finish, Placed
from cosd_api.decoding.drafts import Drafts
from cosd_api.decoding.hedges import Hedge, Hedges
from cosd_api.decoding.pending import Counts, Loss, Pending, Verdict
from cosd_api.decoding.questions import Questions
from cosd_api.decoding.response import Response
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Token


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
        hedge: drafts that are started ahead of a verdict, at most so many at a time.
        patient: while drafting goes on, questions wait (`Wait`) for more to be asked with them.
        survives: whether the answer goes on without an assistant that has failed so; by default it never does.
        without: the assistants that were lost before the answer began, and why.

    Attributes:
        response: the answer so far.
        counts: what was counted so far.
        finished: how the answer ended, once it is complete.
        hedges: the drafts that were started ahead.
        lost: the assistants that the answer goes on without, and where they were lost.
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
        in_flight: int = 1,
        skip: bool = True,
        hedge: int = 0,
        patient: bool = False,
        survives: Callable[[Exception], bool] = lambda _: False,
        without: Mapping[int, Exception] | None = None,
    ) -> None:
        self.verifier = verifier
        self.unit: Unit = unit
        self.assistants = assistants
        self.skip = skip
        self.survives = survives

        self.response = Response(max_tokens, stop)
        self.counts = Counts()
        self.finished: Finish | None = None
        self.lost = {at: Loss(0, error, before=True) for at, error in (without or {}).items()}
        self._pending: deque[Pending] = deque()
        self._failed = False
        self._drafts = Drafts(draft_length, max_ahead)
        self._questions = Questions(assistants, unit, in_flight, patient=patient)
        self.hedges = Hedges(hedge, max_ahead, lambda token: self._could_change((token,)), self._drafts.number)

    # --- events ---

    def start(self) -> list[Command]:
        """The first commands."""
        return self._proceed([])

    def drafted(self, draft: int, token: Token) -> list[Command]:
        """The draft under way wrote one more token."""
        if draft != self._drafts.under_way:
            return [*self.hedges.drafted(draft, token)]
        if self.response.over:
            return []
        return self._proceed(self._take(token))

    def _take(self, token: Token) -> list[Command]:
        """Puts a token of the draft at the end of the response, and into its unit."""
        self._drafts.left -= 1
        unit = self._open_unit()
        if unit is not None and starts_unit(self.unit, unit.tokens, token):
            self._complete(unit)
            unit = None
        if unit is None:
            unit = Pending(len(self.response.text), len(self.response.tokens))
            self._pending.append(unit)
        unit.tokens.append(token)
        self.response.place(Placed(token))
        if self.response.over or self.unit == "token" or token.end or len(unit.tokens) == LONGEST:
            self._complete(unit)
        too_long = self.response.over and self._drafts.left and not token.end  # as one that was taken over may be
        if self.response.stopped or too_long:  # what would follow is never judged
            return [*self._drafts.cancel()]
        return []

    def draft_ended(self, draft: int, end: DraftEnd) -> list[Command]:
        """The draft under way gave its last token."""
        if draft != self._drafts.under_way:
            self.hedges.ended(draft, end)
            return []
        self._drafts.ended(end.continuation)
        self._close(end)
        return self._proceed([])

    def _close(self, end: DraftEnd) -> None:
        """No draft can go on where the model's context is full, or a filter stepped in."""
        if not self.response.over and end.reason in ("context", "filter"):
            context = end.reason == "context"
            self.response.over = Finish("length", "context") if context else Finish("content_filter", "content_filter")
            unit = self._open_unit()
            if unit is not None:
                self._complete(unit)

    def draft_failed(self, draft: int, error: Exception) -> list[Command]:
        """The draft under way broke: an error once everything before is settled and the answer is to go on."""
        if draft != self._drafts.under_way:
            self.hedges.failed(draft)
            return []
        self._drafts.ended(error=error)
        return self._proceed([])

    def answered(self, ask: int, proposals: Sequence[Proposal | None]) -> list[Command]:
        """An assistant answered; `proposals` are in the order of the questions."""
        taken = self._questions.take(ask)
        if taken is None:
            return []
        assistant, asked = taken
        commands: list[Command] = []
        for (unit, verdict), proposal in zip(asked, proposals, strict=True):
            if unit.resolved or verdict.done or unit not in self._pending:
                continue  # void since, or by an answer just before this one
            unit.hear(assistant, proposal, self.verifier, self._contestable, self.unit)
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
        taken = self._questions.take(ask)
        if taken is None:
            return []
        _, asked = taken
        for _, verdict in asked:
            verdict.alone = True
            verdict.error = error if len(asked) == 1 else None
        return self._proceed([])

    def waited(self, wait: int) -> list[Command]:
        """A `Wait` is over."""
        self._questions.waited(wait)
        return self._proceed([])

    def stop_here(self, finish: Finish) -> None:
        """Ends the answer with what was emitted; nothing that is under way is heard any more.

        What is held back because it could still become a stop string is left out: so whatever the moment, the answer
        is a beginning of the one that it would have become.
        """
        if self.finished is None:
            self._pending.clear()
            self._questions.under_way.clear()
            self._drafts.cancel()
            self.response.keep_emitted(finish)
            self._finish([])

    # --- verdicts ---

    def _contestable(self, tokens: Sequence[Token]) -> bool:
        """Whether an assistant is to be asked about these tokens."""
        return self._could_change(tokens) if self.skip else bool(tokens)

    def _could_change(self, tokens: Sequence[Token]) -> bool:
        """Whether an answer about these tokens could change the text."""
        contestable = self.verifier.contestable
        for token in tokens:  # noqa: SIM110 - for each token that is drafted, at half the price
            if token.prob is not None and contestable(token.prob):
                return True
        return False

    def _complete(self, unit: Pending) -> None:
        """The unit's last token is there."""
        unit.finish(self.assistants, self._contestable, self.lost)
        if unit.waiting and unit.heard:  # nobody is left to ask
            self._resolve(unit, [])

    def _resolve(self, unit: Pending, commands: list[Command]) -> None:
        """All assistants have judged the unit: of those that fire, the surest replaces; ties go to the first."""
        unit.resolved = True
        unheard = unit.unheard(self._could_change)
        for place, token in enumerate(self.response.tokens[unit.first : unit.first + len(unit.tokens)]):
            token.asked = unit.asked
            token.decisions = unit.decisions(place, place + 1)
            token.verified = place < unheard
        winner = unit.winner
        if winner is not None:
            self._replace(unit, winner, commands)

    def _replace(self, unit: Pending, winner: Verdict, commands: list[Command]) -> None:
        """Algorithm 1, lines 11 to 13: keep what stands before, put the assistant's word, draft again from there."""
        decision = winner.decisions[-1]
        self._void_after(unit, commands)
        self.response.cut_back(unit.first + decision.first)
        verified = unit.unheard(self._could_change) == len(unit.tokens)
        for placed in unit.replacement(winner, verified=verified):
            if self.response.over is None:
                self.response.place(placed)
        self._drafts.begin_anew(self.response)
        unit.replaced = decision.last - decision.first
        unit.drafted_on = self.response.over is None

    def _void_after(self, unit: Pending, commands: list[Command]) -> None:
        """Whatever was drafted after the unit will be thrown away: so it is now, and nobody is asked about it."""
        commands.extend(self._drafts.drop())
        while self._pending[-1] is not unit:
            self._pending.pop().void = True
        self.response.cut_back(unit.first + len(unit.tokens))
        commands.extend(self._questions.void(self._pending))

    def _lose(self, commands: list[Command]) -> bool:
        """Goes on without the assistants that failed where the answer waits for them, if it may."""
        unit = self._pending[0] if self._pending else None
        if unit is None or not unit.waiting or not unit.errors or self._error() is not None:
            return False
        if any(not verdict.done and verdict.error is None for verdict in unit.verdicts):
            return False  # one that is surest of all, say, makes it all the same whether others were heard
        for assistant, error in unit.errors:
            verdict = unit.verdicts[assistant]
            self.lost[assistant] = Loss(unit.first + verdict.at, error)
            verdict.lost = verdict.done = True
        self._resolve(unit, commands)
        if unit.winner is None and not (self.response.over and self._pending[-1] is unit):
            self._void_after(unit, commands)
            self._drafts.begin_anew(self.response)
            unit.drafted_on = True
        return True

    # --- commands ---

    def _proceed(self, commands: list[Command]) -> list[Command]:
        """What is to be done as things stand now."""
        if self.finished or self._failed:
            return []
        self._settle(commands)
        while self._lose(commands):
            self._settle(commands)
        if self.response.over and not self._pending:
            commands.extend(self.hedges.tidy())
            self._finish(commands)
            return commands
        error = self._error()
        if error is not None:
            self._failed = True
            commands.append(Fail(error))
            return commands
        drafts = self._drafts.start(self._pending, self.response)
        hedge = self.hedges.take(drafts[0]) if drafts else None
        if hedge is not None:
            return self._take_over(hedge, commands)
        commands.extend(self.hedges.tidy())  # first of all, so that their servers are free
        commands.extend(drafts)
        if self._drafts.length is None or self._drafts.under_way is None:  # of fixed rounds, the whole round
            drafting = self._drafts.under_way is not None and self.response.over is None
            commands.extend(self._questions.ask(self._pending, self.response, drafting=drafting))
        commands.extend(self.hedges.start(self._pending, self.response))
        return commands

    def _take_over(self, hedge: Hedge, commands: list[Command]) -> list[Command]:
        """What was drafted ahead is drafted: its tokens come now, and what it writes from here on is the draft."""
        self._drafts.take_over(hedge.started)
        if hedge.end is not None:
            self._drafts.ended(hedge.end.continuation)
        for token in hedge.tokens:
            if self.response.over is None:
                commands.extend(self._take(token))
        if hedge.end is not None:
            self._close(hedge.end)
        return self._proceed(commands)

    def _settle(self, commands: list[Command]) -> None:
        """What stands before every open verdict is final."""
        if not (self._pending and self._pending[0].resolved):
            return
        end = 0
        while self._pending and self._pending[0].resolved:
            unit = self._pending.popleft()
            end = self._pending[0].first if self._pending else len(self.response.tokens)
            self.counts.add(unit)
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
        """What failed, if the first thing that the answer waits for is that, and it cannot do without."""
        if not (self._pending and self._pending[0].waiting):
            return self._drafts.error
        for verdict in self._pending[0].verdicts:
            if not verdict.done and (verdict.error is None or not self.survives(verdict.error)):
                return verdict.error  # none yet: one that is surest of all spares those listed after it
        return None

    def _open_unit(self) -> Pending | None:
        unit = self._pending[-1] if self._pending else None
        return None if unit is None or unit.complete else unit
