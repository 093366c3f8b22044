"""Collaborative Speculative Decoding: Algorithm 1 of the paper (arXiv 2502.08020), for every pair of models.

::

     1-3   the draft model writes greedily: x~_1, x~_2, ...                                          `Drafts.draft`
     4-7   each assistant says its own tokens at the same places: x^_1, x^_2, ...                     `Judging.judge`
     8     for each place in turn:
     9         if x~ != x^ and p < alpha and q > beta * p     (rule)                              `Verdicts.replaces`
    10         or x~ != x^ and T(p, q) = 1                    (tree)                              `Verdicts.replaces`
    11             keep the draft before x~, and replace x~ by x^                                          `_replace`
    12-13          throw away the rest of the draft, and draft again after x^                              `_replace`
    14     keep the text that no assistant contests                                                       `_emit_final`

An answer holds two kinds of knowledge: the *path*, which consists of the draft's tokens and is changed only by
replacements, and what each assistant has *said*, which never becomes wrong. The text is a function of these two. All
steps overlap. `Pacing` decides when something is asked and how far the draft runs ahead, and cannot change a token.

If the answer may continue without an assistant (`survives`), an assistant that fails permanently is lost at the first
place about which it gave no answer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import anyio

from cosd_api.alignment import Decision, least
from cosd_api.common.tasks import AnswerTasks
from cosd_api.decoding.answer import LOOKAHEAD, AnswerPath, Judge, Mark, Recorded, Replacement
from cosd_api.decoding.answer_job import AnswerJob
from cosd_api.decoding.calls import Calls
from cosd_api.decoding.commands import DRAFT, Finish, Handover, Loss, Placed, Report, cut_short, may_pass
from cosd_api.decoding.draft_loop import Drafts
from cosd_api.decoding.failover import Failover
from cosd_api.decoding.judge_loop import Judging
from cosd_api.decoding.pacing import Pacing
from cosd_api.decoding.readers import ByText, Literal, OwnIds, Reader, SameIds
from cosd_api.decoding.response import Response
from cosd_api.decoding.verdicts import Verdicts
from cosd_api.paths.cuts import word_around
from cosd_api.paths.encoding import Encoder
from cosd_api.verification import Verifier, needs_of, tie_of
from cosd_providers.contract import Piece, Token
from cosd_providers.forwarding import by_ids

GRACE_SECONDS = 2.0
"""Time within which the bill of a draft that has written its last token has to arrive."""


class Decoder:
    """One fused answer in progress; an implementation of `Run`.

    Args:
        job: the models, limits, settings and record of the answer.
        verifier: the rule, a tree, or another verifier.
    """

    def __init__(self, job: AnswerJob, verifier: Verifier) -> None:
        self.calls = Calls(job.turns, job.budget, job.timeline, room=job.room, speeds=job.drafts.speeds)
        self.finished: Finish | None = None
        self._job, self._tasks = job, AnswerTasks()
        self._lost = {at: Loss(0, error, before=True) for at, error in job.without.items()}
        self._seams: list[Handover] = []
        self._survivors: list[Judge] = []
        self._encoders: dict[int, Encoder] = {}
        self._cuts = job.drafts.cuts or [False] * len(job.turns)
        pace = replace(job.drafts.pace, needs=needs_of(verifier))
        models = [model for model in range(1, len(job.turns)) if model - 1 not in job.without]
        readers = {model: self._reader(model, verifier) for model in models}
        self._tokenwise = all(one.tokenwise for one in readers.values())
        draft_ids = job.routes.draft == "ids"
        encoder = self._draft_encoder() if draft_ids and not self._tokenwise else None
        self._answer = answer = AnswerPath(
            job, encoder, by_ids=draft_ids, lookahead=0 if self._tokenwise else LOOKAHEAD
        )
        self._verdicts = verdicts = Verdicts(verifier, answer)
        self._pacing = pacing = Pacing(
            pace, answer, cuts=all(self._cuts[model] for model in (0, *models)), pauses=draft_ids
        )
        self._drafting = Drafts(answer, self.calls, pacing, self._tasks.start)
        start = self._tasks.start
        self._judging = Judging(answer, readers, verdicts, self.calls, pacing, self._drafting, start)
        self._failover = Failover(answer, self.calls, self._encoders, start, tokenwise=self._tokenwise)
        self._response = Response(job.max_tokens, job.stop)
        self._units = self._off_path = self._unjudged = 0
        answer.judges = {model: Judge(model) for model in models}

    def _reader(self, model: int, verifier: Verifier) -> Reader:
        job, needs = self._job, needs_of(verifier)
        match job.routes.assistants[model - 1]:
            case "ids":
                seen = max(1, needs.alternatives)
                return SameIds(model, tie_of(verifier, job.drafts.tie), max(seen, job.drafts.pace.shown), seen)
            case "own":
                encoder = self._encoders[model] = self._encoder(model)
                return OwnIds(model, encoder, tie_of(verifier, job.drafts.tie))
            case "text":
                return ByText(model, job.turns[model].provider)
            case "literal":
                return Literal(model, max(needs.alternatives, job.drafts.pace.shown))

    def _encoder(self, model: int) -> Encoder:
        turn = self._job.turns[model]
        return Encoder(by_ids(turn.on_path).encode, turn.lead, cuts=self._cuts[model])

    def _draft_encoder(self) -> Encoder:
        """The draft's encoder, whose failures are the draft's, whichever assistant needs an encoding."""
        turn = self._job.turns[0]

        async def encode(text: str) -> Sequence[Piece]:
            try:
                return await by_ids(turn.on_path).encode(text)
            except Exception as error:
                self._answer.drafts_error = error
                raise

        return Encoder(encode, turn.lead, cuts=self._cuts[0])

    # -------------------------------------------------------------------------------------------------------- a run

    async def run(self) -> None:
        """Run until the answer ends; see `Run.run`."""
        try:
            await self._tasks.run(self._main)
        finally:
            self._pacing.over()

    def stop_here(self, finish: Finish) -> None:
        """End the answer after its emitted tokens. This has no effect on a complete answer."""
        if self.finished is None:
            self._response.keep_emitted(finish)
            self.finished = finish

    def report(self) -> Report:
        """The report on the answer so far."""
        kept = sum(one.source == DRAFT for one in self._response.tokens)
        found = replace(
            self._answer.counts, text=bytes(self._response.text), kept=kept, lost=self._lost, seams=self._seams
        )
        if not self._tokenwise:
            found.off_path, found.unjudged = self._off_path + self._drafting.off_path, self._unjudged
        return found

    async def _main(self) -> None:
        answer = self._answer
        self._tasks.start(self._drafting.draft)
        if self._job.drafts.down is not None:
            self._fail_over(self._job.drafts.down)
        for judge in answer.judges.values():
            self._tasks.start(self._judging.judge, judge)
        while self.finished is None:
            news = answer.news
            self._advance()
            if self.finished is None and news is answer.news:
                await news.wait()
        if answer.complete:  # the draft's bill arrives with its end
            with anyio.move_on_after(GRACE_SECONDS):
                while self._drafting.writing:
                    await answer.changed()

    def _advance(self) -> None:
        """Make the replacements that are due, and emit final tokens."""
        answer = self._answer
        while self.finished is None:
            if self._failover.active and not self._follow_failover():
                return
            judges = [*answer.judges.values()]
            first = min((one for one in judges if one.stopped), key=self._rank, default=None)
            if first is None or not all(one.stopped or self._is_past(one, first) for one in judges):
                self._emit_final(judges)
                return
            if first.error is None:
                self._replace(first)
            elif first.drafts_error:
                self._fail_over(first.error)
            elif self._job.survives(first.error):
                self._lost[first.model - 1] = Loss(first.first, first.error)
                self._judging.lose(answer.judges.pop(first.model))
                answer.notify()
            else:
                raise first.error

    # ------------------------------------------------------------------------------------------ failures of the draft

    def _fail_over(self, error: Exception) -> None:
        """Let the first living assistant, else a lost one that may be back, write on alone from the judged text.

        Raises:
            Exception: `error`, if answers do not fail over or no assistant is left.
        """
        answer, turns = self._answer, self._job.turns
        models = [one.model for one in answer.judges.values() if one.error is None or one.drafts_error]
        lost = [at + 1 for at, loss in sorted(self._lost.items()) if may_pass(loss.error) and turns[at + 1].prompt]
        if not (models or lost) or not self._job.drafts.fails_over(error):
            raise error
        seam = answer.judged
        self._survivors = [answer.judges[model] for model in models] + [Judge(model) for model in lost]
        self._drafting.stop(error)
        for judge in answer.judges.values():
            self._judging.lose(judge)
            if judge.model not in models and judge.error is not None:
                self._lost[judge.model - 1] = Loss(seam, judge.error)
        answer.judges = {}
        answer.cut_back(seam)
        answer.decisions = [one for one in answer.decisions if one.last <= seam]
        self._begin_seam(error, 0)

    def _begin_seam(self, error: Exception, failed: int) -> None:
        """Let the first of the surviving assistants continue, after `error` of the model `failed`."""
        model = self._survivors[0].model
        self._seams.append(Handover(len(self._answer.tokens), model - 1, error))
        reason = f"unverified: the {self._job.names[failed]} failed ({type(error).__name__})"
        reason = f"{reason}, and the {self._job.names[model]} writes alone"
        self._failover.begin(model, reason, looks_at_once=error is self._job.drafts.down)
        self._answer.notify()

    def _follow_failover(self) -> bool:
        """Emit what an assistant has written alone. Return True after the draft has returned."""
        failover, answer = self._failover, self._answer
        if failover.error is not None:
            error, failed = failover.error, self._survivors[:1]
            if not failed:
                raise error
            del self._survivors[0]
            self._lost.setdefault(failed[0].model - 1, Loss(len(answer.tokens), error))
            if self._survivors:
                self._begin_seam(error, failed[0].model)
            elif self._job.survives(error):
                failover.resort_to_draft(error)
            else:
                raise error
        elif failover.returned:
            self._return()
            return True
        self._emit_final(())
        return False

    def _return(self) -> None:
        """Let the draft continue and the assistants judge, as after a word of the assistant that wrote alone."""
        answer, end = self._answer, len(self._answer.tokens)
        self._seams.append(Handover(end, DRAFT))
        answer.counts.iterations += 1
        self._failover.leave()
        self._drafting.restart()
        for old in self._survivors:
            own = end if old is self._survivors[0] else None
            new = answer.judges[old.model] = Judge(old.model, old.said, end, own)
            new.starts = old.starts | {end}  # of the tokens before the failover, too, which may not be final yet
            self._tasks.start(self._judging.judge, new)
        answer.notify()

    # ------------------------------------------------------------------------------------- which replacement is first

    def _rank(self, judge: Judge) -> tuple[float, ...]:
        """The order of the assistants that have stopped.

        The earliest word, or token, comes first. Within it, failures come first, then the most confident replacement;
        equally confident assistants are in the order of the list.
        """
        q = -math.inf if judge.replacement is None else -(judge.replacement.decision.q or 0.0)
        if self._tokenwise:  # no later assistant can be more confident than one that is certain
            return judge.first, -math.inf if judge.is_certain else q, judge.model
        word, _ = word_around(bytes(self._answer.text), self._changed(judge))
        return word, q, judge.model

    def _changed(self, judge: Judge) -> int:
        """The first byte that a stopped assistant changes or could not judge."""
        return self._answer.offset(judge.first) if judge.replacement is None else judge.replacement.changed

    def _token(self, judge: Judge) -> int:
        """The first token that a stopped assistant changes or could not judge."""
        if judge.replacement is None or judge.replacement.whole:
            return judge.first
        return bisect_right(self._answer.ends, judge.replacement.changed, lo=judge.first)

    def _is_past(self, judge: Judge, stopped: Judge) -> bool:
        """Test whether an assistant has judged the whole word, or token, at which another one has stopped."""
        answer, first = self._answer, judge.first
        if answer.is_end(first):
            return True
        if self._tokenwise:
            return first > stopped.first or (
                first == stopped.first and stopped.is_certain and stopped.model < judge.model
            )
        _, end = word_around(bytes(answer.text), self._changed(stopped))
        return first > self._token(stopped) and answer.offset(first) >= end and (end < len(answer.text) or answer.ended)

    # ----------------------------------------------------------------------------------------------- the replacement

    def _replace(self, judge: Judge) -> None:
        """Put an assistant's word into the path, and let all models continue after it (lines 11 to 13)."""
        answer, made = self._answer, judge.replacement
        assert made is not None
        unit, there = made.unit, self._token(judge)
        others = [one for one in answer.judges.values() if one is not judge]
        # Of the other decisions about the changed token, those stay that this replacement has outvoted.
        q = made.decision.q or 0.0
        outvoted = answer.decided(
            lambda one: one.first <= there < one.last and self._is_outvoted(one.decision, q, judge)
        )
        dropped = [one.replacement.decision for one in others if one.replacement is not None]
        ends = [*answer.ends]
        answer.kept = answer.settled(unit.first)
        kept = self._put(judge.model - 1, made)
        mark = answer.marks[min(there, len(answer.marks) - 1)]
        mark.off_path += made.cut
        mark.unjudged += sum(one.first < there for one in others)
        first = min(kept, unit.first)
        self._keep_decisions(first, ends, dropped)
        here = [Recorded(first, len(answer.tokens), one) for one in (*outvoted, made.decision)]
        answer.decisions += here
        self._drafting.restart()
        self._pacing.replaced()
        end = len(answer.tokens)
        for one in [*answer.judges.values()]:
            one.leave()
            new = answer.judges[one.model] = Judge(one.model, one.said, end, end if one is judge else None)
            new.starts = {at for at in one.starts if at <= first} | {kept} & {first}
            self._tasks.start(self._judging.judge, new)
        answer.notify()

    def _is_outvoted(self, decision: Decision, q: float, winner: Judge) -> bool:
        """Test whether a decision is another assistant's and does not win against a replacement with this `q`."""
        if self._tokenwise and winner.is_certain and decision.assistant >= winner.model:  # it was not waited for
            return False
        theirs = decision.q or 0.0
        loses = theirs < q or (theirs == q and self._tokenwise)
        return not decision.fired or (decision.assistant != winner.model - 1 and loses)

    def _keep_decisions(self, first: int, ends: Sequence[int], dropped: Sequence[Decision]) -> None:
        """Keep the decisions about the tokens before `first`; `ends` are the ends of the tokens before the replacement.

        Replacements that other assistants wanted are neither made nor recorded.
        """
        answer, known = self._answer, list[Recorded]()
        winners = {id(mark.winner) for mark in answer.marks[len(self._response.tokens) : first]}
        wanted = {id(one) for one in dropped}
        for one in answer.decisions:
            if id(one.decision) in winners or (one.last <= first and id(one.decision) not in wanted):
                if one.last > first:
                    cut = ends[one.last - 1] - answer.offset(first)
                    one.decision.text = one.decision.text[: max(len(one.decision.text) - cut, 0)]
                    one.last = first
                known.append(one)
        answer.decisions = known

    def _put(self, source: int, made: Replacement) -> int:
        """Put a replacement into the path. Return the number of tokens that remain."""
        answer, unit, decision = self._answer, made.unit, made.decision
        old = list(zip(answer.tokens, answer.ends, answer.marks, strict=True))
        over, begin = unit.first + decision.count, unit.first if made.whole else 0
        if not made.whole:
            over = max(over, bisect_right(answer.ends, made.changed) + 1)
        keep = min(made.keep, unit.first) if made.whole else made.keep
        answer.cut_back(keep)
        if made.text is None and answer.offset(keep) < made.at:  # the assistant ends the answer inside a draft token
            part = old[keep][0]
            answer.append(replace(part, data=part.data[: made.at - answer.offset(keep)], id=None), answer.mark())
        tokens = [*made.said]
        if not made.whole and made.text is not None:
            own = {(end, token.id): token for token, end, _ in old if end <= made.at}
            marks = {end: mark for _, end, mark in old}
            tokens = self._spelled(made, own)
            while tokens and own.get((end := len(answer.text) + len(tokens[0].data), tokens[0].id)) is tokens[0]:
                answer.append(tokens.pop(0), marks[end])
        start = len(answer.text)
        gone = [
            replace(token, data=token.data[max(len(token.data) - end + start, 0) :])
            for token, end, _ in old[begin:over]
            if made.whole or end > start or token.end
        ]
        decision.draft, decision.text = b"".join(token.data for token in gone), (made.text or b"")[start:]
        first = unit.first
        if not made.whole:
            later = (at for at in range(first, len(old)) if old[at][1] > start or old[at][0].end)
            first = min(next(later, over), len(old) - 1)
        replaced = tuple(gone)
        for token in tokens:
            answer.append(token, replace(answer.mark(source, decision, replaced), draft=old[first][2].draft))
            replaced = ()
        return keep

    def _spelled(self, made: Replacement, own: dict[tuple[int, int | None], Token]) -> list[Token]:
        """The new tokens of the path, each with the probability from the model that wrote its text."""
        tokens, start = list[Token](), self._answer.offset(made.keep)
        for id_, end in zip(made.ids, made.ends, strict=True):
            mine = own.get((end, id_))
            if mine is not None and len(mine.data) == end - start:
                tokens.append(mine)
            else:
                tokens.append(Token((made.text or b"")[start:end], _least_over(made, start, end), id=id_))
            start = end
        return tokens

    # --------------------------------------------------------------------------------------------------- final tokens

    def _emit_final(self, judges: Sequence[Judge]) -> None:
        """Emit final tokens, and end the answer if the draft cannot continue (line 14)."""
        answer, response = self._answer, self._response
        first = min([one.first for one in judges], default=len(answer.tokens))
        if self._failover.active and not self._tokenwise and not answer.is_end(first):
            first = max(len(response.tokens), first - 1)  # the draft may return before the last token
        final = first if answer.is_end(first) else answer.settled(first)
        grown = len(response.tokens) < final
        while len(response.tokens) < final and response.over is None:
            self._settle(len(response.tokens), judges)
        if response.over is None:
            if grown:
                self._emit(response.settle(len(response.tokens)))
                for one in judges:
                    one.forget(len(response.tokens), answer.offset(len(response.tokens)))
            self._end_with_the_draft(judges, first)
        if response.over is not None:
            self.finished = response.over
            self._emit(response.finish())

    def _end_with_the_draft(self, judges: Sequence[Judge], first: int) -> None:
        """End the answer, or fail, if every assistant has judged what there is and the draft writes no more."""
        size, drafting = len(self._answer.tokens), self._drafting
        if not all(self._answer.is_idle(one) for one in judges if not one.stopped):
            return
        if drafting.error is not None and not self._failover.active:
            self._fail_over(drafting.error)
            return
        end = self._failover.end if self._failover.active else drafting.end
        if end is not None and first >= size:
            self._response.over = cut_short(end)

    def _emit(self, tokens: Sequence[Placed]) -> None:
        if tokens:
            self._job.emit(tokens)

    def _settle(self, at: int, judges: Sequence[Judge]) -> None:
        """Add one token of the path to the response, as a final token."""
        answer, counts = self._answer, self._answer.counts
        token, mark = answer.tokens[at], answer.marks[at]
        answer.decisions = [one for one in answer.decisions if one.last > at]
        about = sorted(answer.decided(lambda one: one.first <= at), key=lambda decision: decision.assistant)
        counts.unanswered += mark.unanswered
        self._off_path += mark.off_path
        self._unjudged += mark.unjudged
        counts.replacements += bool(mark.replaced)
        counts.replaced += len(mark.replaced)
        counts.ties += mark.winner is None and any(one.decision.tied for one in answer.decisions if one.first == at)
        alone = mark.failover is not None
        if at and (self._tokenwise or alone or all(at in one.starts for one in judges or self._survivors)):
            self._units += 1
        self._response.place(
            Placed(
                token,
                mark.source,
                asked=mark.silent or bool(about),
                decisions=tuple(about),
                winner=mark.winner,
                replaced=mark.replaced,
                verified=not alone and self._is_verified(at, mark),
                draft=mark.draft,
                at=mark.at,
                reason=mark.failover,
                alone=alone,
                unit=self._units,
                round=counts.iterations,
            )
        )
        if mark.winner is not None and (at + 1 == len(answer.marks) or answer.marks[at + 1].winner is not mark.winner):
            counts.iterations += self._response.over is None

    def _is_verified(self, at: int, mark: Mark) -> bool:
        """Test whether every assistant that could have changed a token has judged it."""
        lost, winner = [one for one, loss in self._lost.items() if loss.token <= at], mark.winner
        if winner is None:
            return not lost or not self._verdicts.contestable(at)
        certain = self._tokenwise and winner.q == 1
        return not any(not certain or one < winner.assistant for one in lost)


def _least_over(made: Replacement, start: int, end: int) -> float | None:
    """The probability of the assistant's tokens that contain any of the bytes from `start` to `end`."""
    found, at = list[Token](), made.at
    for token in made.said:
        if at < end and at + len(token.data) > start:
            found.append(token)
        at += len(token.data)
    return least(found) if found else None
