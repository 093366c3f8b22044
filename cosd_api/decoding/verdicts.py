"""The units of an answer and their verdicts: what stands, what is replaced, and what is final.

Half of the state machine of `cosd.py`, which tells it what was drafted and heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Command, Emit
from cosd_api.decoding.drafts import Drafts
from cosd_api.decoding.pending import Counts, Loss, Pending, Verdict
from cosd_api.decoding.questions import Questions
from cosd_api.decoding.response import Response
from cosd_api.verification import Verifier
from cosd_providers.contract import Token


class Verdicts:
    """The units that wait for their verdicts, in the order of the text, and what becomes of them.

    Args:
        verifier: the rule or the tree.
        response: the answer so far.
        drafts: what is drafted, and thrown away behind a replacement.
        questions: what is asked, and called off where it cannot matter any more.
        skip: leave out questions whose answers cannot matter.
        survives: whether the answer goes on without an assistant that has failed so.
        without: the assistants that were lost before the answer began, and why.

    Attributes:
        response: the answer so far.
        counts: what was counted so far.
        lost: the assistants that the answer goes on without, and where they were lost.
        now: the time of the event that is told next, as whoever tells it counts; for the record, it decides nothing.
    """

    def __init__(
        self,
        verifier: Verifier,
        response: Response,
        drafts: Drafts,
        questions: Questions,
        *,
        skip: bool,
        survives: Callable[[Exception], bool],
        without: Mapping[int, Exception],
    ) -> None:
        self.verifier = verifier
        self.unit: Unit = questions.unit
        self.assistants = questions.assistants
        self.skip = skip
        self.survives = survives
        self.response = response
        self.counts = Counts()
        self.lost = {at: Loss(0, error, before=True) for at, error in without.items()}
        self.now = 0.0
        self._pending: deque[Pending] = deque()
        self._drafts = drafts
        self._questions = questions

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
        draft = self.response.tokens[unit.first + decision.first].draft
        self.response.cut_back(unit.first + decision.first)
        verified = unit.unheard(self._could_change) == len(unit.tokens)
        for placed in unit.replacement(winner, verified=verified, draft=draft, at=self.now):
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

    def _settle(self, commands: list[Command]) -> None:
        """What stands before every open verdict is final."""
        if not (self._pending and self._pending[0].resolved):
            return
        end = 0
        while self._pending and self._pending[0].resolved:
            unit = self._pending.popleft()
            end = self._pending[0].first if self._pending else len(self.response.tokens)
            for token in self.response.tokens[unit.first : end]:
                token.unit, token.round = self.counts.units, self.counts.iterations
            self.counts.add(unit)
        if not (self.response.over and not self._pending):  # else all goes out with the end
            tokens = self.response.settle(end)
            if tokens:
                commands.append(Emit(tokens))

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
