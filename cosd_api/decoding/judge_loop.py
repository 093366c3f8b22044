"""The judging of the path by the assistants, one loop for each.

Each step settles a unit, or finds the one thing that is missing, or waits for news. No step keeps a state of its own:
it computes everything again from the path and from what the assistant has said. So the order of events cannot change
the text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import anyio

from cosd_api.alignment import Decision, least
from cosd_api.decoding.answer import AnswerPath, Judge, Recorded, Replacement
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.commands import StartDraft
from cosd_api.decoding.draft_loop import Drafts
from cosd_api.decoding.pacing import Pacing
from cosd_api.decoding.readers import KeyedPlace, Pending, Reader, UnwrittenText
from cosd_api.decoding.said import Source, Writing
from cosd_api.decoding.verdicts import Verdicts
from cosd_api.decoding.watches import Watches
from cosd_api.paths.cuts import is_safe_cut
from cosd_api.paths.units import PathUnit
from cosd_api.paths.walks import Difference, Walk, begun_before, next_start
from cosd_providers.contract import DraftEnd, Question, Token

_LISTED = 4  # number of other tokens to list if the draft is asked for the probability of its own token

Request = Callable[[], Awaitable[None]]
"""A request that a step found to be missing."""


class Judging:
    """Judges the path on behalf of the assistants.

    Args:
        answer: the answer.
        readers: the way in which each assistant reads the path, by the index of the model.
        verdicts: the verifier.
        calls: access to the models.
        pacing: decides what is asked together or early.
        drafting: the draft, which stops if its further text is sure to be replaced.
        start: starts a background task.
    """

    def __init__(
        self,
        answer: AnswerPath,
        readers: Mapping[int, Reader],
        verdicts: Verdicts,
        calls: Calls,
        pacing: Pacing,
        drafting: Drafts,
        start: Callable[..., None],
    ) -> None:
        self._answer, self._readers, self._verdicts, self._calls = answer, readers, verdicts, calls
        self._pacing, self._drafting, self._start = pacing, drafting, start
        watched = [at for at, one in readers.items() if one.takes_ids and pacing.is_watched(at)]
        self._watches = Watches(answer, calls, start, readers, watched)

    async def judge(self, judge: Judge) -> None:
        """Take steps until a replacement ends this judge or the answer is over."""
        answer = self._answer
        while answer.is_current(judge):
            with anyio.CancelScope() as judge.scope:
                news, change, judge.asks = answer.news, answer.changes, False
                try:
                    moved = await self._move(judge)
                except Exception as error:  # noqa: BLE001 - raised only when the answer waits for this assistant
                    judge.drafts_error = judge.drafts_error or error is answer.drafts_error
                    model = 0 if judge.drafts_error else judge.model
                    judge.error, moved = placed(error, answer.job.turns[model].provider), True
                if moved and answer.is_current(judge):
                    if self._pacing.is_futile:
                        self._drafting.leave()
                    self._watches.follow(judge)
                    answer.notify()
                    continue
                answer.caught_up(judge, change)
                if news is answer.news:
                    await answer.changed()

    def lose(self, judge: Judge) -> None:
        """Cancel the work of an assistant that is lost."""
        judge.leave()
        self._watches.leave(judge.model)

    async def _move(self, judge: Judge) -> bool:
        """Take the steps that can be taken now, up to the first request. Return False if nothing has changed."""
        moved, tokenwise = False, self._readers[judge.model].tokenwise
        while not judge.stopped:
            step = await self._step(judge)
            if not isinstance(step, bool):
                if moved:
                    self._answer.notify()
                self._answer.caught_up(judge, judge.caught_up_to, asks=True)
                await step()
                return True
            if not step:
                break
            moved = True
            if not tokenwise:
                break
        return moved

    async def _step(self, judge: Judge) -> bool | Request:
        """Settle one unit, or find the request that is missing. Return False if nothing can be done now."""
        answer, reader = self._answer, self._readers[judge.model]
        complete, seen = answer.complete, len(answer.tokens)  # read before any `await`, in which the draft may write
        unit = await self._unit(judge, judge.first)
        if not answer.is_current(judge):
            return False
        if unit is None and complete and not answer.is_end(judge.first):  # the draft will never write far enough
            end = self._uncontestable_run(judge.first, reader) or len(answer.tokens)
            unit = PathUnit(judge.first, end, answer.offset(judge.first), answer.offset(end))
        if unit is None:
            self._wait(judge, seen)
            return await self._early(judge, reader)
        judge.starts.add(unit.first)
        if not self._is_asked(unit):
            judge.waits = False
            self._count_units(judge, reader, unit)
            answer.marks[unit.first].unjudged += any(
                map(self._verdicts.asks, range(unit.first, min(unit.last, answer.bound)))
            )
            judge.first = unit.last
            return True
        found = reader.compare(answer, unit, judge.said)
        if found is None:
            self._wait(judge, seen)
            return False
        if isinstance(found, Walk) and found.difference is not None:
            unknown = self._unknown(judge, unit, found.difference)
            if unknown is None:
                return await self._differ(judge, reader, unit, found, seen)
            judge.waits = False
            return unknown
        judge.waits = False
        if isinstance(found, KeyedPlace):
            return self._missing(judge, reader, unit, found)
        self._keep(judge, unit, found)
        return True

    async def _unit(self, judge: Judge, first: int) -> PathUnit | None:
        """The unit that begins with a token; what no answer could change is kept in one run."""
        answer, reader = self._answer, self._readers[judge.model]
        if first >= min(answer.bound, len(answer.tokens)):
            return None
        if first in judge.units:
            return judge.units[first]
        end = self._uncontestable_run(first, reader) if answer.job.drafts.skip else None
        if end is not None:
            return PathUnit(first, end, answer.offset(first), answer.offset(end))
        unit = await reader.unit(answer, first, own=first == judge.own)
        if unit is not None:
            judge.units[first] = unit
        return unit

    def _uncontestable_run(self, first: int, reader: Reader) -> int | None:
        """The end of the run of tokens from `first` on that no answer could change; None if there is none.

        The run ends where every reader's units have boundaries, so that its tokens need not be encoded.
        """
        answer, found, text = self._answer, None, b""
        for at in range(first, min(len(answer.tokens), answer.bound)):
            if self._verdicts.contestable(at):
                break
            text = text or (b"" if reader.tokenwise else answer.written)
            last = answer.tokens[at].end or at + 1 == answer.job.max_tokens
            if reader.tokenwise or last or (reader.cuts and is_safe_cut(text, answer.ends[at])):
                found = at + 1
        return found

    def _count_units(self, judge: Judge, reader: Reader, unit: PathUnit) -> None:
        """Let a run of tokens that is not judged count as units between safe cuts, wherever the run happened to end."""
        if not reader.tokenwise:
            text, ends = self._answer.written, self._answer.ends
            judge.starts.update(at for at in range(unit.first + 1, unit.last) if is_safe_cut(text, ends[at - 1]))

    def _is_asked(self, unit: PathUnit) -> bool:
        """Test whether the assistant has to be asked about a unit."""
        answer = self._answer
        last = min(unit.last, answer.bound)
        if unit.start < unit.end and answer.offset(last) == unit.start:  # only white space of a template is within
            return False
        return unit.judged and any(map(self._verdicts.asks, range(unit.first, last)))

    def _wait(self, judge: Judge, size: int) -> None:
        """Let the draft write more than `size` tokens, if the judge waits for that.

        The beginning of a wait is news; while the draft is not writing, so is each look at a longer path.
        """
        answer = self._answer
        waits = not answer.ended and judge.first < min(answer.bound, len(answer.tokens))
        if waits and (not judge.waits or (judge.seen != size and not self._drafting.writing)):
            answer.notify()
        judge.waits, judge.seen = waits, size

    # ------------------------------------------------------------------------------------------------ the questions

    def _missing(self, judge: Judge, reader: Reader, unit: PathUnit, place: KeyedPlace) -> bool | Request:
        """The request that will say what is missing; False if it is already on its way."""
        known = range(unit.first, min(len(self._answer.tokens), self._answer.bound))
        if self._drafting.writing and self._pacing.waits(map(self._verdicts.asks, known)):
            return False
        if place.key == judge.early or (reader.takes_ids and self._watches.comes_by(judge, place.key)):
            return False
        return partial(self._ask, judge, reader, unit, place)

    async def _early(self, judge: Judge, reader: Reader) -> bool:
        """Ask about a place whose unit is not complete, if the ids before it are certain; return False."""
        answer, first = self._answer, judge.first
        known = range(first, min(len(answer.tokens), answer.bound))
        if known and not any(map(self._verdicts.asks, known)):
            return False
        if judge.early is not None or ((first or answer.tokens) and not self._pacing.asks_singly(judge.model)):
            return False
        if first >= answer.bound or not self._verdicts.ever:
            return False
        short = self._pacing.runs_on(judge.model)
        place = await reader.early(answer, judge, likely=short)
        if place is None or place.key == judge.asked_early or not answer.is_current(judge):
            return False
        if self._watches.comes_by(judge, place.key):
            return False
        judge.asked_early = place.key  # not asked early again, should it fail
        streams = short or self._pacing.is_watched(judge.model)
        if streams and self._watches.open_at(judge, place, short=short):
            return False
        judge.early, judge.early_scope = place.key, anyio.CancelScope()
        self._start(self._ask_early, judge, reader, place)
        return False

    async def _ask_early(self, judge: Judge, reader: Reader, place: KeyedPlace) -> None:
        """Ask about a place in the background, because the answer may turn out not to need it."""
        if not self._answer.is_current(judge):
            return
        with judge.early_scope, suppress(Exception):  # asked again when the answer needs it
            await reader.ask(self._calls, self._answer, [place], judge.said)
        judge.early = None
        self._answer.notify()

    async def _ask(self, judge: Judge, reader: Reader, unit: PathUnit, missing: KeyedPlace) -> None:
        """Ask about the missing place, and about others that are worth asking about in the same request."""
        answer, places, found = self._answer, [missing], dict[object, KeyedPlace]()
        most = 1 if missing.key == judge.asked_early else self._pacing.places_per_question(judge.model)
        if most > 1:
            units, last = [unit], unit.last
            while len(units) < most and (more := await self._unit(judge, last)) is not None:
                units.append(more)
                last = more.last
            for one in units:
                if self._is_asked(one):
                    found |= {place.key: place for place in reader.places(answer, one)}
            said = judge.said
            places = [one for one in found.values() if one.key not in said.after and one.key not in said.wrote]
        try:
            await self._ask_about(judge, reader, places)
        except Exception:
            if len(places) == 1:
                raise
            await self._ask_about(judge, reader, [missing])  # the request may have failed because of another place

    async def _ask_about(self, judge: Judge, reader: Reader, places: Sequence[KeyedPlace]) -> None:
        """Ask about places: by a new watch, or in one question."""
        short = len(places) == 1 and self._pacing.runs_on(judge.model)
        if not (reader.takes_ids and self._watches.open_at(judge, places[0], short=short)):
            await reader.ask(self._calls, self._answer, places, judge.said)

    async def _write_again(self, judge: Judge, more: UnwrittenText) -> None:
        """Let an assistant without ids write its text of the unit again, and further."""
        tokens, ended, number = list[Token](), False, next(self._answer.asks)

        def take(item: Token | DraftEnd) -> bool:
            nonlocal ended
            if isinstance(item, DraftEnd) or item.end:
                ended = ended or isinstance(item, Token) or item.reason == "end"
                return True
            tokens.append(item)
            return more.enough(tokens)

        command = StartDraft(number, more.text, more.most, None, ())
        await self._calls.generate(judge.model, command, take, question=True)
        judge.said.note_text(more.key, Writing(tokens, ended), Source(number, more.at))

    # ------------------------------------------------------------------------------------------------- the verdicts

    def _keep(self, judge: Judge, unit: PathUnit, found: Walk) -> None:
        """Keep a unit with which the assistant agrees, or about which it gave no answer."""
        answer, count = self._answer, unit.last - unit.first
        answer.marks[unit.first].off_path += unit.cut
        if found.silent:
            answer.marks[unit.first].unanswered += 1
            for mark in answer.marks[unit.first : unit.last]:
                mark.silent = True
        else:
            data, choices = bytes(answer.text[unit.start : unit.end]), found.choices
            p, q = least(answer.tokens[unit.first : unit.last]), least(choices)
            decision = Decision(judge.model - 1, data, p, q, True, False, data, tied=found.tied, count=count)
            if self._readers[judge.model].tokenwise:
                self._verdicts.replaces(unit.first, choices[0], decision)
            self._record(judge, unit, unit.end + 1, decision)
        judge.first = unit.last

    async def _differ(self, judge: Judge, reader: Reader, unit: PathUnit, walked: Walk, seen: int) -> bool | Request:
        """Let the verifier decide about a difference, and find the replacement if it replaces.

        `seen` is the number of tokens of the path that was compared.
        """
        answer, found = self._answer, walked.difference
        assert found is not None
        over = min(begun_before(answer, unit.first, found.end), answer.bound)  # tokens beyond it are lookahead
        p, q = least(answer.tokens[unit.first : over]), least(found.walked)
        mine, theirs = bytes(answer.text[found.at : found.end]), found.theirs
        decision = Decision(judge.model - 1, theirs.data, p, q, False, False, mine, count=over - unit.first)
        fires = self._verdicts.replaces(unit.first, theirs, decision)
        way: Replacement | Pending | None = None
        if fires:
            if not reader.tokenwise:
                self._stop_draft(judge, found)
            more = await reader.replacement(answer, unit, found, decision, judge.said)
            if not answer.is_current(judge):
                return False
            if more is Pending.DRAFT:
                self._wait(judge, seen)
                return False
            judge.waits = False
            if isinstance(more, UnwrittenText):
                if more.ids is None:
                    return partial(self._write_again, judge, more)
                if not self._watches.comes_by(judge, more.ids):
                    self._watches.write(judge, more)
                return False
            way = more
        answer.marks[unit.first].off_path += unit.cut
        judge.conflict = judge.waits = False
        contested = any(map(self._verdicts.contestable, range(unit.first, min(unit.last, answer.bound))))
        following = next_start(answer, unit, found.end) if not fires and contested else unit.last
        if isinstance(way, Replacement):
            decision.fired, judge.replacement = True, way
        if way is Pending.UNFIT:  # leaves no record
            answer.marks[unit.first].unanswered += 1
        else:
            self._record(judge, replace(unit, last=following), found.at + 1, decision)
        if judge.replacement is None:
            judge.first = following
        return True

    def _stop_draft(self, judge: Judge, found: Difference) -> None:
        """Stop the draft if no further text can make it agree with the assistant's token."""
        answer, theirs = self._answer, found.theirs
        size = min(len(theirs.data), len(answer.text) - found.at)
        judge.conflict = theirs.end or bytes(answer.text[found.at : found.at + size]) != theirs.data[:size]
        if judge.conflict and self._pacing.is_futile:
            self._drafting.leave()

    def _unknown(self, judge: Judge, unit: PathUnit, found: Difference) -> Request | bool | None:
        """The request for a probability that a server hid and without which a difference cannot be judged.

        Returns:
            None if all probabilities are known; False if another judge is asking.
        """
        answer, said, reader = self._answer, judge.said, self._readers[judge.model]
        over = min(begun_before(answer, unit.first, found.end), answer.bound)
        for at in range(unit.first, over):
            token = answer.tokens[at]
            hidden = token.prob is None and token.id is not None and not token.end
            if hidden and answer.by_ids and not answer.marks[at].looked_up:
                return False if answer.marks[at].looked_up is None else partial(self._look_up, judge, at)
        if found.ids is None or not (self._verdicts.needs.q or len(answer.judges) > 1):  # the most confident one wins
            return None
        for place in reader.places(answer, unit):
            if place.at <= found.at and said.is_hidden(place.key):
                return partial(self._ask_again, judge, reader, place)
        return None

    async def _ask_again(self, judge: Judge, reader: Reader, place: KeyedPlace) -> None:
        """Ask about a place at which a stream showed no probability."""
        said = judge.said
        shown, source = said.after.pop(place.key), said.sources.pop(place.key)
        try:
            await reader.ask(self._calls, self._answer, [place], said)
        finally:
            if said.after.get(place.key) is None:
                said.after[place.key], said.sources[place.key] = shown, replace(source, hidden=False)

    async def _look_up(self, judge: Judge, at: int) -> None:
        """Ask the draft for the probability of its own token."""
        answer, mark = self._answer, self._answer.marks[at]
        token, mark.looked_up = answer.tokens[at], None
        question, number = Question(answer.offset(at), ()), next(answer.asks)
        try:
            [found] = await self._calls.propose(
                0, bytes(answer.text), [question], alternatives=_LISTED, paths=[answer.ids(at)], number=number
            )
        except Exception:
            judge.drafts_error = True
            raise
        finally:
            mark.looked_up = False
        mark.looked_up = True
        for one in () if found is None else (found.tokens[0], *found.tokens[0].alternatives):
            if one.id == token.id and at < len(answer.tokens) and answer.tokens[at] is token:
                answer.tokens[at] = replace(token, prob=one.prob)

    def _record(self, judge: Judge, unit: PathUnit, end: int, decision: Decision) -> None:
        """Record a decision, with the request that said what was heard last before byte `end`."""
        places = [place for place in self._readers[judge.model].places(self._answer, unit) if place.at < end]
        sources = [(place.key, judge.said.sources[place.key]) for place in places if place.key in judge.said.sources]
        watched = [self._watches.count(judge, source.number, key) for key, source in sources]
        if sources:
            _, source = sources[-1]
            decision.ask, decision.strategy = source.number, "watch" if watched[-1] else source.strategy
        self._answer.decisions.append(Recorded(unit.first, unit.last, decision))
