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

from collections.abc import Callable, Mapping, Sequence

from cosd_api.alignment import LONGEST, Unit, starts_unit
from cosd_api.decoding.commands import DRAFT, Command, Emit, Fail, Finish, Placed
from cosd_api.decoding.drafts import Drafts
from cosd_api.decoding.hedges import Hedge, Hedges
from cosd_api.decoding.pending import Pending
from cosd_api.decoding.questions import Questions
from cosd_api.decoding.response import Response
from cosd_api.decoding.verdicts import Verdicts
from cosd_api.verification import Verifier
from cosd_providers.contract import DraftEnd, Proposal, Token


class CoSD(Verdicts):
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
        response: the answer so far; `counts`, `lost` and `now` as in `Verdicts`.
        finished: how the answer ended, once it is complete.
        hedges: the drafts that were started ahead.
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
        super().__init__(
            verifier,
            Response(max_tokens, stop),
            Drafts(draft_length, max_ahead),
            Questions(assistants, unit, in_flight, patient=patient),
            skip=skip,
            survives=survives,
            without=without or {},
        )
        self.finished: Finish | None = None
        self._failed = False
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
        return self._proceed(self._take(token, draft))

    def _take(self, token: Token, draft: int) -> list[Command]:
        """Puts a token of a draft at the end of the response, and into its unit."""
        self._drafts.left -= 1
        unit = self._open_unit()
        if unit is not None and starts_unit(self.unit, unit.tokens, token):
            self._complete(unit)
            unit = None
        if unit is None:
            unit = Pending(len(self.response.text), len(self.response.tokens))
            self._pending.append(unit)
        unit.tokens.append(token)
        self.response.place(Placed(token, draft=draft, at=self.now))
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
            unit.hear(assistant, proposal, self.verifier, self._contestable, self.unit, ask)
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
                commands.extend(self._take(token, hedge.started.draft))
        if hedge.end is not None:
            self._close(hedge.end)
        return self._proceed(commands)

    def _finish(self, commands: list[Command]) -> None:
        self.finished = self.response.over
        assert self.finished is not None
        tokens = self.response.finish()
        self.counts.kept = sum(one.source == DRAFT for one in self.response.tokens)
        if tokens:
            commands.append(Emit(tokens))
        commands.append(self.finished)
