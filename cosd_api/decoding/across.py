"""Algorithm 1 across tokenizers: a draft is judged by assistants with other ids, each asked on its own path.

::

    1   the draft model writes on from its own ids, while questions are out                       `_write_draft`
    2   each assistant goes through the units of its own encoding of what was written             `_judge`
    3   it is asked at the boundaries of its tokens; the first that it would not write differs    `_walk`
    4   where the verifier replaces, it writes its word and what follows                          `_fire`
    5   the draft's path goes on behind that word, in the draft's own encoding                    `_replace`
    6   what lies before the first open unit of every assistant is final                          `_let_out`

Units, places and restarts are functions of the draft's path (`paths`), so the text does not depend on timing, on
batches, or on how far the draft is ahead. The draft writes on behind the end of the answer as far as the last place
needs to be encoded (`LOOKAHEAD` tokens at most); none of that is judged or comes out.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, count

import anyio
import anyio.lowlevel

from cosd_api.alignment import Decision, least
from cosd_api.decoding.calls import placed
from cosd_api.decoding.commands import DRAFT, Placed, Report, StartDraft, cut_short
from cosd_api.decoding.driver import FIRST_SECONDS, GRACE_SECONDS
from cosd_api.decoding.hearings import AboutTokens, Firing, PathHearing, PathMark
from cosd_api.decoding.path_watches import PathWatches
from cosd_api.decoding.run import AnswerJob
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.differences import (
    AskedPlace,
    Difference,
    Walk,
    asked_places,
    begun_before,
    next_start,
    walk,
    walk_text,
)
from cosd_api.paths import (
    DraftPath,
    Encoder,
    PathUnit,
    Restart,
    end_of_word,
    is_safe_cut,
    look,
    next_token,
    next_unit,
    restart,
    word_around,
)
from cosd_api.text_paths import next_text_unit, restart_text, resumed, unit_question
from cosd_api.verification import Place, Verifier, coin_of, decides_by_place, digest_of, needs_of, tie_of, verifier_at
from cosd_providers.contract import DraftEnd, Question, Ready, Token
from cosd_providers.same_ids import by_ids

LOOKAHEAD = 16
"""Tokens that the draft may write behind the end of the answer, so that its last places can be encoded."""
_Place = tuple[int, int | None]  # the byte at which a token ends, and its id
_MOST_UNITS = 32  # units that one request is about
_LISTED = 4  # tokens that the draft lists beside its own where it is asked how probable that is


class AcrossTokenizers(AnswerWriter):
    """The run of one answer.

    Args:
        job: the models, the limits and the record; every model takes contexts by ids.
        verifier: the rule or the tree, say.
    """

    def __init__(self, job: AnswerJob, verifier: Verifier) -> None:
        super().__init__(job, _write)
        self._verifier = verifier
        self._by_place = decides_by_place(verifier)
        self._needs_q = needs_of(verifier).q
        self._tie = tie_of(verifier, job.tie)
        self._digest = digest_of(job.turns[0].prompt)
        self._drafted = DraftPath()
        self._marks: list[PathMark] = []
        self._draft_encoder, *encoders = [self._encoder(model) for model in range(self.count)]
        shares = job.shares or [False] * self.count
        heard = [model for model in self.models if model]
        self._hearings = {model: PathHearing(model, encoders[model - 1], shares[model - 1]) for model in heard}
        self._watches = PathWatches(
            [model - 1 for model in heard if encoders[model - 1] is not None and model - 1 in job.pace.watched],
            partial(next, self._numbers),
            calls=self.calls,
            draft=self._drafted,
            judged=self._judged_bytes,
            tell=self._tell,
        )
        self._draft_scope = anyio.CancelScope()
        self._writing = False
        draft = job.turns[0].provider
        self._ready = draft if isinstance(draft, Ready) else None
        self._draft_end: DraftEnd | None = None
        self._draft_error: Exception | None = None
        self._stop_end: int | None = None  # byte offset behind the stop string that ends what was drafted
        self._news = anyio.Event()
        self._decisions: list[AboutTokens] = []
        self._emitted = 0  # tokens of the path
        self._judged = 0  # tokens of the path that every assistant has judged
        self._units = 0
        self._counts = Report(off_path=0, unjudged=0)
        self._draft = 0  # number of the draft in progress, or of the last one
        self._left = 0  # number of the last draft that a replacement has ended
        self._asks = count(1)  # numbers of questions
        self._begun = 0  # tokens of the path before those that the draft wrote since the start or a replacement
        self._again = b""  # what a draft that takes text only is to write once more
        self._stuck = -1  # tokens of the path at which it did not

    def _encoder(self, model: int) -> Encoder | None:
        """A model's encodings; None if it takes text only."""
        takes_ids = model in self.models and self._job.by_ids and self._job.by_ids[model]
        turn = self._job.turns[model]
        return Encoder(by_ids(turn.on_path).encode, turn.lead) if takes_ids else None

    # ------------------------------------------------------------------------------------------------------- the run

    async def write_answer(self) -> None:
        """Write the answer to its end."""
        self._tasks.start(self._write_draft)
        for hearing in self._hearings.values():
            self._tasks.start(self._judge, hearing)
        while not self.over:
            news = self._news
            self._advance()
            if not self.over and news is self._news:
                await news.wait()
        if self._drafted.ended or self._drafted.over:
            with anyio.move_on_after(GRACE_SECONDS):
                while self._writing:
                    await self._changed()
        self._watches.leave()

    def report(self) -> Report:
        """The answer so far."""
        kept = sum(one.source == DRAFT for one in self._response.tokens)
        return replace(self._counts, text=bytes(self._response.text), kept=kept, lost=self._lost)

    def _tell(self) -> None:
        """Wake whoever waits for something to have changed."""
        news, self._news = self._news, anyio.Event()
        news.set()

    async def _changed(self) -> None:
        """Wait for news; who is cancelled by the same news does nothing with them."""
        await self._news.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()

    # ------------------------------------------------------------------------------------------------------- line 1

    async def _write_draft(self) -> None:
        """Line 1: write on whenever there is room, from the path's own ids."""
        while True:
            room = self._room()
            if room <= 0:
                await self._changed()
                continue
            self._draft = next(self._numbers)
            command = self._next_draft(room)
            if self._ready is not None:
                self._tasks.start(self._keep_ready, self._ready)
            with anyio.CancelScope() as self._draft_scope:
                self._writing = True
                try:
                    await self.calls.generate(
                        0, command, partial(self._take, self._draft), counts=lambda: not self._drafted.ended
                    )
                except Exception as error:  # noqa: BLE001 - it matters once the answer waits for it
                    if command.draft > self._left:
                        self._draft_error = placed(error, self._job.turns[0].provider)
            self._writing = False
            self._tell()

    async def _keep_ready(self, draft: Ready) -> None:
        """Have a connection made for the next draft: a stream that is left takes its own with it."""
        await anyio.sleep(FIRST_SECONDS)
        with suppress(Exception):  # it only saves time
            if await draft.keep_ready() is False:
                self._ready = None

    def _next_draft(self, room: int) -> StartDraft:
        """A draft of so many tokens behind the path; by text, what is behind the last safe cut is written once more."""
        path, text = self._drafted, bytes(self._drafted.text)
        self._again = b""
        if self._draft_encoder is not None:
            return StartDraft(self._draft, text, room, None, (), ids=tuple(token.id or 0 for token in path.tokens))
        at = resumed(path, self._begun) if self._stuck != len(path.tokens) else None
        if at is None:
            at = len(text)
            self._counts.off_path = (self._counts.off_path or 0) + 1
        self._again = text[at:]
        return StartDraft(self._draft, text[:at], room + len(path.tokens) - bisect_right(path.ends, at), None, ())

    def _anew(self, token: Token) -> Token | None:
        """The part of a token that is new, where the draft writes the end of the path once more; None if none is."""
        before, data = self._again, token.data
        if not before:
            return token
        if not (data.startswith(before) or before.startswith(data)):
            self._stuck = len(self._drafted.tokens)
            return None
        self._again = before[len(data) :]
        return replace(token, data=data[len(before) :]) if len(data) > len(before) else None

    def _room(self) -> int:
        """Tokens that the draft may be asked for now."""
        path, pace, written = self._drafted, self._job.pace, len(self._drafted.tokens)
        starving = self._starving()
        if path.ended or path.over or self._draft_error is not None or (self._reaches() and not starving):
            return 0
        most = self._bound() + LOOKAHEAD - written
        bound = pace.draft_length or pace.max_ahead
        if bound is not None:
            ahead = written - self._judged
            most = min(most, bound if starving else bound - ahead)
        return most

    def _starving(self) -> bool:
        """True if an assistant waits for the draft to write more."""
        return any(one.starving for one in self._hearings.values() if one.open)

    def _reaches(self) -> bool:
        """True if what is drafted reaches as far behind the end of the answer as its last word needs, most likely."""
        path, bound = self._drafted, self._bound()
        if len(path.tokens) <= bound or self._draft_encoder is None:
            return False
        text = path.written
        _, end = word_around(text, path.offset(bound))
        return end < len(text) and look(text, end, ended=False) is not None

    def _take(self, number: int, item: Token | DraftEnd) -> bool:
        """Take what a draft writes; true if nothing more is wanted."""
        path = self._drafted
        if number <= self._left:
            return True
        if isinstance(item, DraftEnd):
            if item.reason in ("context", "filter"):
                self._draft_end, path.over = item, True
            self._stuck = len(path.tokens) if self._again else -1
        elif item.end and self._again:
            self._stuck = len(path.tokens)
        elif (token := self._anew(item)) is not None:
            self._append(self._known_end(token), self._mark())
            self._find_stop(len(token.data))
        if len(path.tokens) >= self._bound() + LOOKAHEAD:
            path.over = True
        self._tell()
        enough = (path.over and self._stop_end is not None) or (self._reaches() and not self._starving())
        return enough or self._stuck == len(path.tokens)

    def _find_stop(self, grown: int) -> None:
        if self._stop_end is None and (stop := self._response.stops.find(self._drafted.text, grown)) is not None:
            self._stop_end = len(self._drafted.text) - stop.distance + len(stop.text.encode())

    def _bound(self) -> int:
        """The number of tokens of the path that may come out: what follows is lookahead."""
        if self._stop_end is None:
            return self._job.max_tokens
        behind = next(
            (at for at, end in enumerate(self._drafted.ends, 1) if end >= self._stop_end), self._job.max_tokens
        )
        return min(self._job.max_tokens, behind)

    def _bound_bytes(self) -> int:
        """The same in bytes, as far as it is known."""
        ends, most = self._drafted.ends, self._job.max_tokens
        limit = ends[most - 1] if len(ends) >= most else len(self._drafted.text)
        return limit if self._stop_end is None else min(limit, self._stop_end)

    # --------------------------------------------------------------------------------------------------- lines 2 to 4

    async def _judge(self, hearing: PathHearing) -> None:
        """Line 2: go through the units of one assistant."""
        while self._is_heard(hearing):
            with anyio.CancelScope() as hearing.scope:
                try:
                    if not (hearing.open and await self._judge_some(hearing)):
                        await self._changed()
                except Exception as error:  # noqa: BLE001 - it matters once the answer waits for it
                    hearing.error = placed(error, self._job.turns[hearing.model].provider)
                    self._tell()

    def _is_heard(self, hearing: PathHearing) -> bool:
        """False once a replacement has come between, or the assistant is lost."""
        return self._hearings.get(hearing.model) is hearing

    async def _judge_some(self, hearing: PathHearing) -> bool:
        """Judge the units that can be judged now; false if there are none."""
        units, open_at, enough = list[PathUnit](), hearing.first, False
        while open_at < min(self._bound(), len(self._drafted.tokens)) and len(units) < _MOST_UNITS and not enough:
            quiet = self._quiet(open_at, same=hearing.same, skip=self._job.skip)
            unit = None if quiet is not None else await self._unit(hearing, open_at)
            if quiet is not None:
                unit = self._unjudged(open_at, quiet)
            if unit is None and self._drafted.over:  # no place in it will ever be ready
                quiet = self._quiet(open_at, same=hearing.same, skip=True) or len(self._drafted.tokens)
                unit = self._unjudged(open_at, quiet)
            if unit is None:
                break
            units.append(unit)
            open_at = unit.last
            enough = self._alone(hearing) and self._contestable(unit)
        starving = not units and not self._drafted.ended and hearing.first < self._bound()
        if starving != hearing.starving:
            hearing.starving = starving
            self._tell()
        if not units:
            return False
        asked = [unit for unit in units if self._contestable(unit)]
        places = [place for unit in asked for place in asked_places(unit, self._bound_of(unit))]
        if not self._alone(hearing):
            await self._ask(hearing, places)
            await self._ask_text(hearing, units)
        for unit in units:
            if hearing.first != unit.first or not await self._walk(hearing, unit):
                break
        self._watches.follow(hearing.model - 1)
        self._tell()
        return True

    async def _unit(self, hearing: PathHearing, first: int) -> PathUnit | None:
        """The unit of an assistant that begins with a draft token; None where the draft has not written far enough."""
        if hearing.same:
            return next_token(self._drafted, first)
        if hearing.encoder is None:
            own_words = await self.splitter(hearing.model)
            return next_text_unit(self._drafted, first, own_words, own=first == hearing.own)
        return await next_unit(self._drafted, first, hearing.encoder, own=first == hearing.own)

    def _unjudged(self, first: int, last: int) -> PathUnit:
        """Tokens that stand."""
        return PathUnit(first, last, self._drafted.offset(first), self._drafted.offset(last))

    def _alone(self, hearing: PathHearing) -> bool:
        """True if an assistant is best asked about one place after another."""
        places, assistant = self._job.pace.places, hearing.model - 1
        return assistant in self._watches.assistants or (bool(places) and places[assistant] == 1)

    def _judged_bytes(self, assistant: int) -> int | None:
        """The byte of the answer before which an assistant has judged everything; None of one that is lost."""
        hearing = self._hearings.get(assistant + 1)
        return None if hearing is None else self._drafted.offset(hearing.first)

    def _quiet(self, first: int, *, same: bool, skip: bool) -> int | None:
        """The end of the tokens from an index on that no answer could change, to a safe cut; None without such.

        Every unit ends at a safe cut, and with the draft's ids (`same`) behind each token: nothing between need be
        encoded. Without `skip` there is none.
        """
        path, found = self._drafted, None
        text = path.written
        for at in range(first, min(len(path.tokens), self._bound())):
            token = path.tokens[at]
            if not skip or self._is_contestable(at):
                break
            if same or token.end or is_safe_cut(text, path.ends[at]) or at + 1 == self._job.max_tokens:
                found = at + 1
        return found

    def _could_change(self, at: int) -> bool:
        """True if an answer about one token of the draft could change the text."""
        return not self._job.skip or self._is_contestable(at)

    def _is_contestable(self, at: int) -> bool:
        """True if the verifier could replace one token of the draft."""
        token = self._drafted.tokens[at]
        if token.prob is None:
            ever = self._by_place or self._verifier.contestable(0.0)
            return ever and token.id is not None and not token.end
        return self._verifier_at(at).contestable(token.prob)

    def _verifier_at(self, at: int) -> Verifier:
        """The verifier that decides at one token of the draft."""
        if not self._by_place:
            return self._verifier
        return verifier_at(
            self._verifier, Place(self._digest, self._drafted.offset(at), token=self._drafted.tokens[at])
        )

    def _contestable(self, unit: PathUnit) -> bool:
        """True if an assistant is asked about a unit."""
        last = min(unit.last, self._bound())
        if unit.start < unit.end and self._drafted.offset(last) == unit.start:  # a lead alone comes out
            return False
        return unit.judged and any(self._could_change(at) for at in range(unit.first, last))

    def _bound_of(self, unit: PathUnit) -> int:
        """The byte before which places of a unit are judged."""
        return unit.end + 1 if self._drafted.tokens[unit.first].end else self._bound_bytes()

    async def _ask(self, hearing: PathHearing, places: Sequence[AskedPlace]) -> None:
        """Ask an assistant for its next token at places that it was not asked about."""
        known = hearing.answers
        hearing.answers = {ids: known[ids] for _, ids in places if ids in known} if len(places) > 1 else known
        new = [place for place in places if place[1] not in known]
        if not new:
            return
        try:
            await self._ask_all(hearing, new)
        except Exception:
            if len(new) == 1:
                raise
            # What failed together may fail for a place that the answer never comes to: each is asked when it does.

    async def _ask_text(self, hearing: PathHearing, units: Sequence[PathUnit]) -> None:
        """Ask an assistant that takes text only what it would write from the start of each unit."""
        new = [one for one in units if one.by_text and one.first not in hearing.proposals and self._contestable(one)]
        if not new:
            return
        path = self._drafted
        found = {unit.first: unit_question(path, unit) for unit in new}
        try:
            number = next(self._asks)
            proposals = await self.calls.propose(hearing.model, bytes(path.text), [*found.values()], number=number)
        except Exception:
            if len(new) == 1:
                raise
        else:
            hearing.proposals.update(zip(found, proposals, strict=True))
            hearing.requests.update(dict.fromkeys(found, number))

    async def _ask_all(self, hearing: PathHearing, places: Sequence[AskedPlace]) -> None:
        text, number = bytes(self._drafted.text), next(self._asks)
        found = await self.calls.propose(
            hearing.model,
            text,
            [Question(at, ()) for at, _ in places],
            alternatives=1,
            paths=[ids for _, ids in places],
            number=number,
        )
        for (_, ids), proposal in zip(places, found, strict=True):
            hearing.requests[ids] = number
            token = None if proposal is None else proposal.tokens[0]
            hearing.answers[ids] = self._known_end(token) if token is not None and hearing.same else token

    async def _choice(self, hearing: PathHearing, at: int, ids: tuple[int, ...]) -> Token | None:
        """An assistant's next token at a place, by its watch or by a request; None where it has none."""
        if ids not in hearing.answers and not await self._listen(hearing, at, ids):
            await self._ask(hearing, [(at, ids)])
        return hearing.answers[ids]

    async def _listen(self, hearing: PathHearing, at: int, ids: tuple[int, ...]) -> bool:
        """Hear what a watch says at a place; false where there is none, and a request has to ask."""
        watches, assistant = self._watches, hearing.model - 1
        most = self._job.max_tokens + LOOKAHEAD - hearing.first
        while assistant in watches.assistants:
            token = await self._written_after(assistant, ids)
            if token is not None:
                watches.heard(assistant)
                hearing.answers[ids] = self._known_end(token) if hearing.same else token
                if token.prob is None:
                    hearing.hidden.add(ids)
                return True
            if not watches.begin(self._tasks.start, assistant, bytes(self._drafted.text[:at]), ids, most):
                return False
        return False

    async def _written_after(self, assistant: int, ids: Sequence[int]) -> Token | None:
        """The token that a watch writes after these ids, waited for; None if it does not come there."""
        while (token := self._watches.wrote_after(assistant, ids)) is None:
            if not self._watches.will_write_after(assistant, ids):
                return None
            await self._changed()
        return token

    async def _with_prob(self, hearing: PathHearing, at: int, ids: tuple[int, ...]) -> Token:
        """An assistant's answer at a place, asked again where its watch did not show how probable that is."""
        token = hearing.answers[ids]
        assert token is not None
        if ids in hearing.hidden and self._needs_q:
            hearing.hidden.remove(ids)
            await self._ask_all(hearing, [(at, ids)])
            token = hearing.answers[ids] = hearing.answers[ids] or token
        return token

    def _known_end(self, token: Token) -> Token:
        """A token as an end of sequence, where its id ends any of the models that have these ids."""
        return replace(token, data=b"", end=True) if token.id in self._job.ends else token

    async def _walk(self, hearing: PathHearing, unit: PathUnit) -> bool:
        """Line 3: judge one unit; true if the next one begins where it ends."""
        path = self._drafted
        hearing.starts.add(unit.first)
        if not self._contestable(unit):
            loud = any(self._could_change(at) for at in range(unit.first, min(unit.last, self._bound())))
            self._count(hearing, unjudged=loud)
            hearing.first = unit.last
            return True
        self._count(hearing, off_path=unit.cut)
        if unit.encoding is None:
            return await self._walk_text(hearing, unit)
        walked = walk(path, unit, self._bound_of(unit), hearing.answers, self._tie)
        while walked.missing is not None or await self._asked_again(hearing, walked):
            if walked.missing is not None:
                await self._choice(hearing, *walked.missing)
            walked = walk(path, unit, self._bound_of(unit), hearing.answers, self._tie)
        if walked.silent:
            self._pass_over(hearing, unit)
            return True
        if walked.difference is not None:
            places = asked_places(unit, self._bound_of(unit))[: len(walked.heard)]
            heard = [await self._with_prob(hearing, *place) for place in places]
            return await self._differ(hearing, unit, replace(walked.difference, walked=heard, own=heard[-1:]))
        self._count(hearing, ties=walked.tied)
        self._agree(hearing, unit, walked.heard, tied=walked.tied)
        return True

    async def _walk_text(self, hearing: PathHearing, unit: PathUnit) -> bool:
        """Line 3 by text: judge one unit by what the assistant would write from its start."""
        if unit.first not in hearing.proposals:
            await self._ask_text(hearing, [unit])
        proposal = hearing.proposals[unit.first]
        tokens = () if proposal is None else proposal.tokens
        while (walked := walk_text(self._drafted, unit, self._bound_bytes(), tokens)) is None:
            await self._starve(hearing)
        hearing.starving = False
        if walked.difference is not None:
            return await self._differ(hearing, unit, walked.difference)
        if walked.silent:
            self._pass_over(hearing, unit)
        else:
            self._agree(hearing, unit, walked.heard)
        return True

    def _pass_over(self, hearing: PathHearing, unit: PathUnit) -> None:
        """Let a unit stand that an assistant has no answer about."""
        self._count(hearing, unanswered=1)
        for mark in self._marks[unit.first : unit.last]:
            mark.asked = True
        hearing.first = unit.last

    async def _starve(self, hearing: PathHearing) -> None:
        """Wait for the draft to write more; only the first time the others are told, who may be waiting, too."""
        if not hearing.starving:
            hearing.starving = True
            self._tell()
        await self._changed()

    def _agree(self, hearing: PathHearing, unit: PathUnit, qs: Sequence[Token], *, tied: bool = False) -> None:
        """An assistant would write what the draft did."""
        path = self._drafted
        p = least(path.tokens[unit.first : unit.last])
        data = bytes(path.text[unit.start : unit.end])
        count = unit.last - unit.first
        decision = Decision(hearing.model - 1, data, p, least(qs), True, False, data, tied=tied, count=count)
        self._decide(hearing, unit, unit.end + 1, decision)
        hearing.first = unit.last

    async def _asked_again(self, hearing: PathHearing, walked: Walk) -> bool:
        """Ask for the probability of a differing choice that a watch did not show; true if that was needed."""
        differs = walked.difference
        if differs is None or differs.ids not in hearing.hidden or not self._needs_q:
            return False
        await self._with_prob(hearing, differs.at, differs.ids)
        return True

    async def _differ(self, hearing: PathHearing, unit: PathUnit, found: Difference) -> bool:
        """Judge the one difference of a unit."""
        path, end = self._drafted, found.end
        over = min(begun_before(path, unit.first, end), self._bound())  # what follows is lookahead
        await self._learn(unit.first, over)
        p, q = least(path.tokens[unit.first : over]), least(found.walked)
        mine = bytes(path.text[found.at : end])
        verifier = self._verifier_at(unit.first)
        replaces = p is not None and not (q is None and self._needs_q)
        replaces = replaces and verifier.replaces(p or 0.0, math.nan if q is None else q)
        coin, data = coin_of(verifier), found.own[0].data
        decision = Decision(hearing.model - 1, data, p, q, False, replaces, mine, coin=coin, count=over - unit.first)
        if replaces:
            firing = await self._fire(hearing, unit, found, decision)
            if firing is not None:
                self._decide(hearing, unit, found.at + 1, decision)
                hearing.firing = firing
                return False
            decision.fired = False
        if not replaces or decision.agreed:  # else it could not be put into the draft's path
            self._decide(hearing, unit, found.at + 1, decision)
        hearing.first = unit.last
        contestable = any(self._is_contestable(n) for n in range(unit.first, min(unit.last, self._bound())))
        if not replaces and contestable:
            hearing.first = next_start(path, unit, end)
        return hearing.first == unit.last

    async def _learn(self, first: int, last: int) -> None:
        """Ask the draft for the probabilities of its own tokens that its server did not show: parts of characters."""
        path = self._drafted
        if self._draft_encoder is None:
            return
        missing = [at for at in range(first, last) if path.tokens[at].prob is None and not path.tokens[at].end]
        for at in missing:
            ids = tuple(token.id or 0 for token in path.tokens[:at])
            [found] = await self.calls.propose(
                0,
                bytes(path.text),
                [Question(path.offset(at), ())],
                alternatives=_LISTED,
                paths=[ids],
                number=next(self._asks),
            )
            listed = () if found is None else (found.tokens[0], *found.tokens[0].alternatives)
            for one in listed:
                if one.id == path.tokens[at].id:
                    path.tokens[at] = replace(path.tokens[at], prob=one.prob)

    async def _fire(self, hearing: PathHearing, unit: PathUnit, found: Difference, decision: Decision) -> Firing | None:
        """Line 4: the assistant's word; None if it spells what the draft wrote, or cannot be put into its path."""
        at, theirs = found.at, found.own[0]
        if theirs.end:
            return Firing(at, decision, unit, None, at, [theirs])
        if hearing.same:
            text = bytes(self._drafted.text[:at]) + theirs.data
            own = Restart(unit.first, (theirs.id or 0,), (len(text),), text)
            return Firing(at, decision, unit, own, at, [replace(theirs, alternatives=())])
        written = await self._continuation(hearing, unit, found)
        data = b"".join(token.data for token in written)
        if self._draft_encoder is None:
            way = restart_text(self._drafted, at, written)
        else:
            way = await restart(self._drafted, unit.first, at, written, self._draft_encoder)
        if way is None:
            self._count(hearing, unanswered=1)
            return None
        goal = min(max(len(way.text), unit.end), at + len(data))
        while len(self._drafted.text) < goal and not (self._drafted.ended or self._drafted.over):
            await self._starve(hearing)
        hearing.starving = False
        mine, short = bytes(self._drafted.text[at:goal]), not self._drafted.ended
        agreed = mine == data[: goal - at] or (short and data.startswith(mine) and len(mine) < goal - at)
        if agreed:
            decision.agreed, decision.text, decision.draft = True, mine, mine
            return None
        self._count(hearing, off_path=way.cut)
        same = next((n for n, (a, b) in enumerate(zip(mine, data, strict=False)) if a != b), min(len(mine), len(data)))
        return Firing(at + same, decision, unit, way, at, written)

    async def _continuation(self, hearing: PathHearing, unit: PathUnit, found: Difference) -> Sequence[Token]:
        """An assistant's token and what it writes behind it, until two words lie behind the word; without an end.

        One that takes text only writes the unit once more. A draft that does needs no more than the word.
        """
        own = [token for token in found.own if not token.end]
        before, ids = bytes(self._drafted.text[: found.at]), found.ids
        if ids is None and (len(own) > end_of_word(own) and self._draft_encoder is None):
            return own
        start = found.at if ids is not None else unit.start
        tokens = own if ids is not None else []

        def behind() -> list[Token]:
            """The tokens from the difference on, without those of a lead, which have no bytes."""
            starts = accumulate((len(token.data) for token in tokens), initial=start)
            return [token for token, at in zip(tokens, starts, strict=False) if at >= found.at and token.data]

        def take(item: Token | DraftEnd) -> bool:
            if isinstance(item, DraftEnd) or item.end:
                return True
            tokens.append(item)
            return _is_enough(before, behind())

        if ids is not None:
            path = [*ids, own[0].id or 0]
            while len(tokens) <= 2 * LOOKAHEAD:
                item = await self._written_after(hearing.model - 1, path)
                if item is None:
                    break
                if take(item):
                    return behind()
                path.append(item.id or 0)
            if len(tokens) > 2 * LOOKAHEAD:
                return behind()
            text = before + b"".join(token.data for token in tokens)
            most, ids = 2 * LOOKAHEAD + 1 - len(tokens), tuple(path)
        else:
            text, most = before[:start], 2 * LOOKAHEAD + len(found.walked)
        command = StartDraft(next(self._numbers), text, most, None, (), ids=ids)
        await self.calls.generate(hearing.model, command, take, question=True)
        again = b"".join(token.data for token in tokens)
        said = b"".join(token.data for token in found.walked)
        return behind() if ids is not None or again.startswith(said) else own

    def _decide(self, hearing: PathHearing, unit: PathUnit, end: int, decision: Decision) -> None:
        """Keep a decision; it names the request that answered the last of the places walked, before byte `end`."""
        places = asked_places(unit, self._bound_of(unit))
        heard = [hearing.requests[ids] for at, ids in places if ids in hearing.requests and at < end]
        proposal = hearing.proposals.get(unit.first)
        decision.ask = heard[-1] if heard else hearing.requests.get(unit.first)
        decision.strategy = None if proposal is None else proposal.strategy
        if self._is_heard(hearing):
            self._decisions.append(AboutTokens(unit.first, unit.last, decision))

    def _count(self, hearing: PathHearing, **more: int) -> None:
        if self._is_heard(hearing):
            for name, count in more.items():
                setattr(self._counts, name, (getattr(self._counts, name) or 0) + count)

    # --------------------------------------------------------------------------------------------------- lines 5 and 6

    def _advance(self) -> None:
        """Replace what is to be replaced, and settle what is final."""
        while not self.over:
            judging = [*self._hearings.values()]
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
        """True if an assistant has judged the whole word that another one changes, or could not judge."""
        path, first = self._drafted, hearing.first
        if self._is_end(first):
            return True
        _, end = word_around(bytes(path.text), self._changed_at(stopped))
        return first > self._token(stopped) and path.offset(first) >= end and (end < len(path.text) or path.ended)

    def _rank(self, hearing: PathHearing) -> tuple[float, ...]:
        """The order of those that have stopped: the first word, then the most confident, then the first listed."""
        firing = hearing.firing
        word, _ = word_around(bytes(self._drafted.text), self._changed_at(hearing))
        return word, 0.0 if firing is None else -(firing.decision.q or 0.0), hearing.model

    def _changed_at(self, hearing: PathHearing) -> int:
        """Byte offset of what an assistant that has stopped changes, or could not judge."""
        return self._drafted.offset(hearing.first) if hearing.firing is None else hearing.firing.changed

    def _token(self, hearing: PathHearing) -> int:
        """Index of the first token that an assistant that has stopped changes, or could not judge."""
        firing, ends = hearing.firing, self._drafted.ends
        if firing is None or hearing.same:
            return hearing.first
        return bisect_right(ends, firing.changed, lo=hearing.first)

    def _give_up(self, hearing: PathHearing) -> None:
        """Continue without an assistant that has failed, if it may."""
        error = hearing.error
        assert error is not None
        if not self._job.survives(error):
            raise error
        self._lose(hearing.model, error)
        del self._hearings[hearing.model]
        self._watches.leave_out(hearing.model - 1)

    def _replace(self, hearing: PathHearing) -> None:
        """Line 5: put the assistant's word into the draft's path, and let everybody go on behind it."""
        firing, path = hearing.firing, self._drafted
        assert firing is not None
        self._draft_scope.cancel()
        self._left = self._draft
        broken = [one for one in self._hearings.values() if one is not hearing and one.first < self._token(hearing)]
        self._counts.unjudged = (self._counts.unjudged or 0) + len(broken)
        old = list(zip(path.tokens, path.ends, strict=True))
        there = self._token(hearing)  # what the others said of the first token that changes is about the word, too
        others = [
            one
            for one in self._decisions
            if one.first <= there < one.last and (not one.decision.fired or _is_outvoted(one.decision, firing.decision))
        ]
        path.kept = self._fixed(firing.unit.first)
        kept = self._put_word(hearing.model - 1, firing, old, same=hearing.same)
        self._draft_error = self._draft_end = None
        self._stop_end = None
        self._find_stop(len(path.text))
        self._begun, self._stuck = len(path.tokens), -1
        first = min(kept, firing.unit.first)
        size = path.offset(first)
        winners = [mark.winner for mark in self._marks[:first]]
        known = [
            one for one in self._decisions if one.last <= first or any(winner is one.decision for winner in winners)
        ]
        self._decisions = [one.before(first, old[one.last - 1][1] - size) for one in known]
        heard_there = [one.decision for one in others]
        self._decisions += [AboutTokens(first, len(path.tokens), one) for one in (*heard_there, firing.decision)]
        heard, self._hearings = [*self._hearings.values()], {}
        for other in heard:
            other.scope.cancel()
            self._hearings[other.model] = new = PathHearing(other.model, other.encoder, other.same, len(path.tokens))
            new.own = len(path.tokens) if other is hearing else None
            new.starts = {start for start in other.starts if start <= first} | {kept} & {first}
            self._tasks.start(self._judge, new)
            self._watches.follow(other.model - 1)
        self._tell()

    def _put_word(self, source: int, firing: Firing, old: Sequence[tuple[Token, int]], *, same: bool) -> int:
        """Rewrite the path from a replacement on; `old` are its tokens before, each with the byte at which it ends.

        Returns:
            The number of tokens that stay.
        """
        path, way, unit, decision = self._drafted, firing.way, firing.unit, firing.decision
        own = {(end, token.id): token for token, end in old if end <= firing.at}
        over = unit.first + decision.count
        over = over if same else max(over, next((n for n, (_, end) in enumerate(old, 1) if end > firing.changed), over))
        keep = bisect_right([end for token, end in old if not token.end], firing.at) if way is None else way.keep
        keep = min(keep, unit.first) if same else keep
        drafts = [mark.draft for mark in self._marks]
        path.cut_back(keep)
        del self._marks[keep:]
        tokens = [*firing.tokens] if same or way is None else self._spelled(way, own, firing)
        if way is None and path.offset(keep) < firing.at:  # the end comes inside a token of the draft
            part, _ = old[keep]
            self._append(replace(part, data=part.data[: firing.at - path.offset(keep)], id=None), self._mark())
        while tokens and not same and own.get((len(path.text) + len(tokens[0].data), tokens[0].id)) is tokens[0]:
            self._append(tokens.pop(0), self._mark())
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
            self._append(token, replace(self._mark(source, decision, replaced), draft=draft))
            replaced = ()
        return keep

    def _mark(self, source: int = DRAFT, winner: Decision | None = None, replaced: tuple[Token, ...] = ()) -> PathMark:
        return PathMark(source, winner, replaced, draft=self._draft, at=self._job.timeline.now())

    def _append(self, token: Token, mark: PathMark) -> None:
        self._drafted.add(token)
        self._marks.append(mark)

    def _spelled(self, way: Restart, own: Mapping[_Place, Token], firing: Firing) -> list[Token]:
        """The tokens of the draft's encoding, with the probabilities of whoever wrote their text."""
        tokens, start = list[Token](), self._drafted.offset(way.keep)
        for id_, end in zip(way.ids, way.ends, strict=True):
            mine = own.get((end, id_))
            if mine is not None and len(mine.data) == end - start:
                tokens.append(mine)
            else:
                tokens.append(Token(way.text[start:end], _least_over(firing, start, end), id=id_))
            start = end
        return tokens

    def _let_out(self, judging: Sequence[PathHearing]) -> None:
        """Line 6: let out what is final, and end the answer where it ends."""
        path = self._drafted
        first = min((one.first for one in judging), default=len(path.tokens))
        self._judged = first
        while self._emitted < self._final(first) and not self.over:
            self._put(self._emitted)
            self._emitted += 1
        if self.over or not all(one.first >= len(path.tokens) or one.starving for one in judging):
            return
        if self._draft_error is not None:
            raise self._draft_error
        if self._draft_end is not None and first >= len(path.tokens):
            self.end(cut_short(self._draft_end))

    def _final(self, first: int) -> int:
        """The tokens that can come out when all before `first` are judged: none that a restart may encode again."""
        return first if self._is_end(first) else self._fixed(first)

    def _fixed(self, first: int) -> int:
        """The number of tokens that stay whatever replaces the token `first`; see `DraftPath.fixed`."""
        return first if self._draft_encoder is None else self._drafted.fixed(first)

    def _is_end(self, first: int) -> bool:
        """True if no token from an index on will be judged."""
        path = self._drafted
        return first >= self._bound() or ((path.ended or path.over) and first >= len(path.tokens))

    def _put(self, at: int) -> None:
        """Let one token of the path out."""
        token, mark = self._drafted.tokens[at], self._marks[at]
        self._decisions = [one for one in self._decisions if one.last > at]
        about = sorted(
            (one.decision for one in self._decisions if one.first <= at), key=lambda decision: decision.assistant
        )
        if mark.replaced:
            self._counts.replacements += 1
            self._counts.replaced += len(mark.replaced)
        one = Placed(token, mark.source, asked=mark.asked or bool(about), decisions=tuple(about), winner=mark.winner)
        one.replaced = mark.replaced
        one.verified = not self._lost or (mark.winner is None and not self._could_change(at))
        one.draft, one.at = mark.draft, mark.at
        if at and all(at in hearing.starts for hearing in self._hearings.values()):
            self._units += 1
        one.unit, one.round = self._units, self._counts.iterations
        if mark.winner is not None and (at + 1 == len(self._marks) or self._marks[at + 1].winner is not mark.winner):
            self._counts.iterations += not token.end
        self._response.place(one)
        self._settle(None)


async def _write(writer: AnswerWriter) -> None:
    assert isinstance(writer, AcrossTokenizers)
    await writer.write_answer()


def _is_outvoted(one: Decision, winner: Decision) -> bool:
    """Test whether an assistant was less sure of its word than the one whose word was taken."""
    return (one.q or 0.0) < (winner.q or 0.0)


def _is_enough(before: bytes, tokens: Sequence[Token]) -> bool:
    """Test whether tokens behind a text hold a whole word, and two words behind it."""
    word = end_of_word(tokens)
    end = len(before) + sum(len(token.data) for token in tokens[:word])
    data = before + b"".join(token.data for token in tokens)
    return word < len(tokens) and look(data, end, ended=False) is not None


def _least_over(firing: Firing, start: int, end: int) -> float | None:
    """The probability of bytes of a replacement: that of the least probable of the assistant's tokens there."""
    over, at = list[Token](), firing.at
    for token in firing.tokens:
        if at < end and at + len(token.data) > start:
            over.append(token)
        at += len(token.data)
    return least(over) if over else None
