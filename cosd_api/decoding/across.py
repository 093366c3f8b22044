"""Algorithm 1 across tokenizers, in which each assistant judges the draft on its own path of ids.

::

    1   the draft model continues from its own ids, while questions are in progress               `PathDrafts.write`
    2   each assistant judges the text in units of its own encoding                               `PathJudge.judge`
    3   each assistant is asked at its token boundaries, up to its first differing token          `PathJudge._walk`
    4   if the verifier replaces, the assistant writes its word and the next tokens               `PathJudge._fire`
    5   the draft's path continues after that word, in the draft's own encoding                   `_replace`
    6   text that all assistants have judged is final                                             `_let_out`

Units, places and restarts are functions of the draft's path (`paths`), so the text does not depend on timing, on
batching, or on how far the draft is ahead. At the end of the answer, the draft writes up to `LOOKAHEAD` more tokens,
because the encoding at the last place depends on the text after it. These tokens are neither judged nor emitted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio

from cosd_api.alignment import Decision, least
from cosd_api.decoding.answer_path import AnswerPath
from cosd_api.decoding.commands import DRAFT, Placed, Report, cut_short
from cosd_api.decoding.driver import GRACE_SECONDS
from cosd_api.decoding.hearings import AboutTokens, Firing, PathHearing
from cosd_api.decoding.path_drafts import PathDrafts
from cosd_api.decoding.path_judge import PathJudge
from cosd_api.decoding.run import AnswerJob
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.paths import Encoder, Restart, word_around
from cosd_api.verification import Verifier
from cosd_providers.contract import Token
from cosd_providers.forwarding import by_ids

_Place = tuple[int, int | None]  # the byte offset at which a token ends, and its id


class AcrossTokenizers(AnswerWriter):
    """One answer in progress by Algorithm 1 across tokenizers.

    Args:
        job: the models, limits, settings and record of the answer.
        verifier: the verifier, such as the rule or a tree.
    """

    def __init__(self, job: AnswerJob, verifier: Verifier) -> None:
        super().__init__(job, _write)
        draft, *encoders = [self._encoder(model) for model in range(self.count)]
        self._answer = AnswerPath(job, draft)
        for model, route in enumerate(job.routes.assistants, 1):
            if model in self.models:
                self._answer.hearings[model] = PathHearing(model, encoders[model - 1], same=route == "ids")
        self._drafts = PathDrafts(self._answer, self.calls, self._tasks)
        self._judge = PathJudge(self._answer, verifier, self.calls, self._tasks)
        self._emitted = 0  # number of the path's tokens that have been emitted
        self._units = 0

    def _encoder(self, model: int) -> Encoder | None:
        """The encoder of a model; None if the model accepts only text."""
        takes_ids = model in self.models and self._job.routes.by_ids[model]
        turn = self._job.turns[model]
        return Encoder(by_ids(turn.on_path).encode, turn.lead) if takes_ids else None

    # ------------------------------------------------------------------------------------------------------- the run

    async def write_answer(self) -> None:
        """Write the answer to its end."""
        path = self._answer
        self._tasks.start(self._drafts.write)
        for hearing in path.hearings.values():
            self._tasks.start(self._judge.judge, hearing)
        while not self.over:
            news = path.news
            self._advance()
            if not self.over and news is path.news:
                await news.wait()
        if path.ended or path.over:
            with anyio.move_on_after(GRACE_SECONDS):
                while self._drafts.writing:
                    await path.changed()

    def report(self) -> Report:
        """The report on the answer so far."""
        kept = sum(one.source == DRAFT for one in self._response.tokens)
        return replace(self._answer.counts, text=bytes(self._response.text), kept=kept, lost=self._lost)

    # --------------------------------------------------------------------------------------------------- lines 5 and 6

    def _advance(self) -> None:
        """Carry out the replacements that are due, and emit final tokens."""
        while not self.over:
            judging = [*self._answer.hearings.values()]
            stopped = [one for one in judging if not one.open]
            first = min(stopped, key=self._rank, default=None)
            if first is not None and all(not one.open or self._is_past(one, first) for one in judging):
                if first.error is not None:
                    self._give_up(first)
                else:
                    self._replace(first)
                continue
            self._let_out(judging)
            return

    def _is_past(self, hearing: PathHearing, stopped: PathHearing) -> bool:
        """Test whether an assistant has judged the whole word at which the assistant `stopped` fired or failed."""
        path, first = self._answer, hearing.first
        if path.is_end(first):
            return True
        _, end = word_around(bytes(path.text), self._changed_at(stopped))
        return first > self._token(stopped) and path.offset(first) >= end and (end < len(path.text) or path.ended)

    def _rank(self, hearing: PathHearing) -> tuple[float, ...]:
        """The sort key of an assistant that has stopped.

        The earliest word comes first. Within a word, assistants that failed come first, followed by the other
        assistants in order of confidence; equally confident assistants are in the order of the list.
        """
        firing = hearing.firing
        word, _ = word_around(bytes(self._answer.text), self._changed_at(hearing))
        return word, -math.inf if firing is None else -(firing.decision.q or 0.0), hearing.model

    def _changed_at(self, hearing: PathHearing) -> int:
        """The byte offset from which a stopped assistant changes the text or could not judge it."""
        return self._answer.offset(hearing.first) if hearing.firing is None else hearing.firing.changed

    def _token(self, hearing: PathHearing) -> int:
        """The index of the first token that a stopped assistant changes or could not judge."""
        firing, ends = hearing.firing, self._answer.ends
        if firing is None or hearing.same:
            return hearing.first
        return bisect_right(ends, firing.changed, lo=hearing.first)

    def _give_up(self, hearing: PathHearing) -> None:
        """Continue without an assistant that has failed, or raise its error if the answer must not continue."""
        error = hearing.error
        assert error is not None
        if not self._job.survives(error):
            raise error
        self._lose(hearing.model, error)
        del self._answer.hearings[hearing.model]
        self._judge.watches.leave_out(hearing.model - 1)

    def _replace(self, hearing: PathHearing) -> None:
        """Put the assistant's word into the draft's path, and let all models continue after the word (line 5)."""
        firing, path = hearing.firing, self._answer
        assert firing is not None
        self._drafts.leave()
        broken = [one for one in path.hearings.values() if one is not hearing and one.first < self._token(hearing)]
        path.counts.unjudged = (path.counts.unjudged or 0) + len(broken)
        old = list(zip(path.tokens, path.ends, strict=True))
        # Other assistants' decisions about the first changed token are recorded together with the word.
        there = self._token(hearing)
        others = [
            one
            for one in path.decisions
            if one.first <= there < one.last and (not one.decision.fired or _is_outvoted(one.decision, firing.decision))
        ]
        path.kept = path.fixed(firing.unit.first)
        kept = self._put_word(hearing.model - 1, firing, old, same=hearing.same)
        path.stop_end = None
        path.find_stop(len(path.text))
        self._drafts.restart()
        first = min(kept, firing.unit.first)
        size = path.offset(first)
        winners = [mark.winner for mark in path.marks[:first]]
        # Replacements that other assistants wanted are neither carried out nor recorded.
        unheeded = [one.firing.decision for one in path.hearings.values() if one is not hearing and one.firing]
        known = [
            one
            for one in path.decisions
            if (one.last <= first and not any(other is one.decision for other in unheeded))
            or any(winner is one.decision for winner in winners)
        ]
        path.decisions = [one.before(first, old[one.last - 1][1] - size) for one in known]
        heard_there = [one.decision for one in others]
        path.decisions += [AboutTokens(first, len(path.tokens), one) for one in (*heard_there, firing.decision)]
        heard, path.hearings = [*path.hearings.values()], {}
        for other in heard:
            other.scope.cancel()
            path.hearings[other.model] = new = PathHearing(other.model, other.encoder, other.same, len(path.tokens))
            new.own = len(path.tokens) if other is hearing else None
            new.starts = {start for start in other.starts if start <= first} | {kept} & {first}
            self._tasks.start(self._judge.judge, new)
            self._judge.watches.follow(other.model - 1)
        path.tell()

    def _put_word(self, source: int, firing: Firing, old: Sequence[tuple[Token, int]], *, same: bool) -> int:
        """Put a replacement into the path; `old` contains the tokens so far, each with the byte offset of its end.

        Returns:
            The number of tokens that remain.
        """
        path, way, unit, decision = self._answer, firing.way, firing.unit, firing.decision
        own = {(end, token.id): token for token, end in old if end <= firing.at}
        over = unit.first + decision.count
        over = over if same else max(over, next((n for n, (_, end) in enumerate(old, 1) if end > firing.changed), over))
        keep = bisect_right([end for token, end in old if not token.end], firing.at) if way is None else way.keep
        keep = min(keep, unit.first) if same else keep
        drafts = [mark.draft for mark in path.marks]
        path.cut_back(keep)
        tokens = [*firing.tokens] if same or way is None else self._spelled(way, own, firing)
        if way is None and path.offset(keep) < firing.at:  # the assistant ends the answer inside a draft token
            part, _ = old[keep]
            path.append(replace(part, data=part.data[: firing.at - path.offset(keep)], id=None), path.mark())
        while tokens and not same and own.get((len(path.text) + len(tokens[0].data), tokens[0].id)) is tokens[0]:
            path.append(tokens.pop(0), path.mark())
        start = len(path.text)
        replaced = tuple(
            replace(token, data=token.data[max(len(token.data) - end + start, 0) :])
            for token, end in old[unit.first if same else 0 : over]
            if same or end > start or token.end
        )
        decision.draft = b"".join(token.data for token in replaced)
        decision.text = b"" if way is None else way.text[start:]
        first = next((n for n, (token, end) in enumerate(old) if n >= unit.first and (end > start or token.end)), over)
        draft = drafts[min(unit.first if same else first, len(drafts) - 1)]
        for token in tokens:
            path.append(token, replace(path.mark(source, decision, replaced), draft=draft))
            replaced = ()
        return keep

    def _spelled(self, way: Restart, own: Mapping[_Place, Token], firing: Firing) -> list[Token]:
        """The tokens of the draft's encoding, with the probabilities from the model that wrote their text."""
        tokens, start = list[Token](), self._answer.offset(way.keep)
        for id_, end in zip(way.ids, way.ends, strict=True):
            mine = own.get((end, id_))
            if mine is not None and len(mine.data) == end - start:
                tokens.append(mine)
            else:
                tokens.append(Token(way.text[start:end], _least_over(firing, start, end), id=id_))
            start = end
        return tokens

    def _let_out(self, judging: Sequence[PathHearing]) -> None:
        """Emit the final tokens, and end the answer if the draft cannot continue (line 6)."""
        path = self._answer
        first = min((one.first for one in judging), default=len(path.tokens))
        path.judged = first
        while self._emitted < self._final(first) and not self.over:
            self._put(self._emitted)
            self._emitted += 1
        # Wait until every assistant that is still judging has reached the end of the path, or needs more text to judge.
        if self.over or not all(not one.open or one.first >= len(path.tokens) or one.starving for one in judging):
            return
        if self._drafts.error is not None:
            raise self._drafts.error
        if self._drafts.end is not None and first >= len(path.tokens):
            self.end(cut_short(self._drafts.end))

    def _final(self, first: int) -> int:
        """The number of tokens that no restart can encode again, if all tokens before `first` are judged."""
        return first if self._answer.is_end(first) else self._answer.fixed(first)

    def _put(self, at: int) -> None:
        """Add one token of the path to the response, as a final token."""
        path = self._answer
        token, mark = path.tokens[at], path.marks[at]
        path.decisions = [one for one in path.decisions if one.last > at]
        about = sorted(
            (one.decision for one in path.decisions if one.first <= at), key=lambda decision: decision.assistant
        )
        if mark.replaced:
            path.counts.replacements += 1
            path.counts.replaced += len(mark.replaced)
        one = Placed(token, mark.source, asked=mark.asked or bool(about), decisions=tuple(about), winner=mark.winner)
        one.replaced = mark.replaced
        one.verified = not self._lost or (mark.winner is None and not self._judge.could_change(at))
        one.draft, one.at = mark.draft, mark.at
        if at and all(at in hearing.starts for hearing in path.hearings.values()):
            self._units += 1
        one.unit, one.round = self._units, path.counts.iterations
        if mark.winner is not None and (at + 1 == len(path.marks) or path.marks[at + 1].winner is not mark.winner):
            path.counts.iterations += not token.end
        self._response.place(one)
        self._settle(None)


async def _write(writer: AnswerWriter) -> None:
    assert isinstance(writer, AcrossTokenizers)
    await writer.write_answer()


def _is_outvoted(one: Decision, winner: Decision) -> bool:
    """Test whether an assistant was less confident in its word than the winner was in the winning word."""
    return (one.q or 0.0) < (winner.q or 0.0)


def _least_over(firing: Firing, start: int, end: int) -> float | None:
    """The lowest probability among the assistant's tokens that contain the given bytes of a replacement."""
    over, at = list[Token](), firing.at
    for token in firing.tokens:
        if at < end and at + len(token.data) > start:
            over.append(token)
        at += len(token.data)
    return least(over) if over else None
