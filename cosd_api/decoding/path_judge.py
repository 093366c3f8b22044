"""The judging of an answer across tokenizers, which implements lines 2 to 4 of `across`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import anyio

from cosd_api.alignment import Decision, least
from cosd_api.decoding.answer_path import LOOKAHEAD, AnswerPath
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.commands import StartDraft
from cosd_api.decoding.hearings import AboutTokens, Firing, PathHearing
from cosd_api.decoding.path_watches import PathWatches
from cosd_api.decoding.tasks import AnswerTasks
from cosd_api.differences import AskedPlace, Difference, Walk, asked_places, begun_before, next_start, walk, walk_text
from cosd_api.paths import PathUnit, Restart, end_of_word, is_safe_cut, look, next_token, next_unit, restart
from cosd_api.text_paths import next_text_unit, restart_text, unit_question
from cosd_api.verification import Place, Verifier, coin_of, decides_by_place, digest_of, needs_of, tie_of, verifier_at
from cosd_providers.contract import DraftEnd, Question, Token
from cosd_providers.tokenizers import words_of

_MOST_UNITS = 32  # maximum number of units in one request
_LISTED = 4  # number of other tokens to list if the draft is asked for the probability of its own token


class PathJudge:
    """Judges the draft's path on behalf of each assistant, in units of the assistant's own encoding.

    Args:
        path: the path, with the assistants that are not lost.
        verifier: the verifier, such as the rule or a tree.
        calls: access to the models.
        tasks: the tasks of the answer.

    Attributes:
        watches: the watches, for assistants that are asked by watches.
    """

    def __init__(self, path: AnswerPath, verifier: Verifier, calls: Calls, tasks: AnswerTasks) -> None:
        self._path = path
        self._verifier = verifier
        self._by_place = decides_by_place(verifier)
        self._needs_q = needs_of(verifier).q
        self._tie = tie_of(verifier, path.job.tie)
        self._digest = digest_of(path.job.turns[0].prompt)
        self._calls = calls
        self._tasks = tasks
        watched = [
            one.model - 1
            for one in path.hearings.values()
            if one.encoder is not None and one.model - 1 in path.job.pace.watched
        ]
        self.watches = PathWatches(watched, calls, path)

    async def judge(self, hearing: PathHearing) -> None:
        """Judge the path unit by unit, on behalf of one assistant (line 2)."""
        path = self._path
        while path.is_heard(hearing):
            with anyio.CancelScope() as hearing.scope:
                news = path.news
                try:
                    if not (hearing.open and await self._judge_some(hearing)) and news is path.news:
                        await path.changed()  # not needed if the path changed during a request
                except Exception as error:  # noqa: BLE001 - raised only when the answer waits for the assistant
                    hearing.error = placed(error, path.job.turns[hearing.model].provider)
                    path.tell()

    async def _judge_some(self, hearing: PathHearing) -> bool:
        """Judge the units that can be judged now. Return False if no unit can be judged."""
        path = self._path
        units, open_at, enough = list[PathUnit](), hearing.first, False
        while open_at < min(path.bound, len(path.tokens)) and len(units) < _MOST_UNITS and not enough:
            quiet = self._quiet(open_at, same=hearing.same, skip=path.job.skip)
            over = path.over  # read now, because the draft may end during `await`
            unit = None if quiet is not None else await self._unit(hearing, open_at)
            if quiet is not None:
                unit = self._unjudged(open_at, quiet)
            if unit is None and over:  # the draft will never write far enough for this unit
                quiet = self._quiet(open_at, same=hearing.same, skip=True) or len(path.tokens)
                unit = self._unjudged(open_at, quiet)
            if unit is None:
                break
            units.append(unit)
            open_at = unit.last
            enough = self._alone(hearing) and self._contestable(unit)
        starving = not units and not path.ended and hearing.first < path.bound
        if starving != hearing.starving:
            hearing.starving = starving
            path.tell()
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
        self.watches.follow(hearing.model - 1)
        path.tell()
        return True

    async def _unit(self, hearing: PathHearing, first: int) -> PathUnit | None:
        """The assistant's unit that begins with a draft token; None if the draft has not written far enough."""
        if hearing.same:
            return next_token(self._path, first)
        if hearing.encoder is None:
            own_words = await words_of(self._path.job.turns[hearing.model].provider)
            return next_text_unit(self._path, first, own_words, own=first == hearing.own)
        return await next_unit(self._path, first, hearing.encoder, own=first == hearing.own)

    def _unjudged(self, first: int, last: int) -> PathUnit:
        """A unit whose tokens are kept without a verdict."""
        return PathUnit(first, last, self._path.offset(first), self._path.offset(last))

    def _alone(self, hearing: PathHearing) -> bool:
        """Test whether an assistant is best asked about one place at a time."""
        places, assistant = self._path.job.pace.places, hearing.model - 1
        return assistant in self.watches.assistants or (bool(places) and places[assistant] == 1)

    def _quiet(self, first: int, *, same: bool, skip: bool) -> int | None:
        """The end of a run of tokens, from `first` on, that no answer could change; None if the run is empty.

        The run ends at a safe cut or, if the assistant has the draft's ids (`same`), after any token. At these places
        the assistant's units have boundaries, so the tokens of the run need not be encoded. Without `skip`, the result
        is None.
        """
        path, found = self._path, None
        text = path.written
        for at in range(first, min(len(path.tokens), path.bound)):
            token = path.tokens[at]
            if not skip or self._is_contestable(at):
                break
            if same or token.end or is_safe_cut(text, path.ends[at]) or at + 1 == path.job.max_tokens:
                found = at + 1
        return found

    def could_change(self, at: int) -> bool:
        """Test whether an assistant has to be asked about a draft token."""
        return not self._path.job.skip or self._is_contestable(at)

    def _is_contestable(self, at: int) -> bool:
        """Test whether the verifier could replace a draft token."""
        token = self._path.tokens[at]
        if token.prob is None:
            ever = self._by_place or self._verifier.contestable(0.0)
            return ever and token.id is not None and not token.end
        return self._verifier_at(at).contestable(token.prob)

    def _verifier_at(self, at: int) -> Verifier:
        """The verifier that decides at a draft token."""
        if not self._by_place:
            return self._verifier
        return verifier_at(self._verifier, Place(self._digest, self._path.offset(at), token=self._path.tokens[at]))

    def _contestable(self, unit: PathUnit) -> bool:
        """Test whether an assistant has to be asked about a unit."""
        last = min(unit.last, self._path.bound)
        if unit.start < unit.end and self._path.offset(last) == unit.start:  # only a `lead` is within the bound
            return False
        return unit.judged and any(self.could_change(at) for at in range(unit.first, last))

    def _bound_of(self, unit: PathUnit) -> int:
        """The byte offset before which the places of a unit are judged."""
        return unit.end + 1 if self._path.tokens[unit.first].end else self._path.bound_bytes

    async def _ask(self, hearing: PathHearing, places: Sequence[AskedPlace]) -> None:
        """Ask an assistant for its next token at those places about which it has not been asked yet."""
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
            # A request may fail because of a place that the answer never reaches. Therefore the assistant is asked
            # about each place separately, when the answer reaches it.

    async def _ask_text(self, hearing: PathHearing, units: Sequence[PathUnit]) -> None:
        """Ask an assistant that accepts only text for its own text from the start of each unit."""
        new = [one for one in units if one.plain and one.first not in hearing.proposals and self._contestable(one)]
        if not new:
            return
        path = self._path
        found = {unit.first: unit_question(path, unit) for unit in new}
        try:
            number = next(path.asks)
            proposals = await self._calls.propose(hearing.model, bytes(path.text), [*found.values()], number=number)
        except Exception:
            if len(new) == 1:
                raise
        else:
            hearing.proposals.update(zip(found, proposals, strict=True))
            hearing.requests.update(dict.fromkeys(found, number))

    async def _ask_all(self, hearing: PathHearing, places: Sequence[AskedPlace]) -> None:
        path = self._path
        text, number = bytes(path.text), next(path.asks)
        found = await self._calls.propose(
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
            hearing.answers[ids] = path.known_end(token) if token is not None and hearing.same else token

    async def _choice(self, hearing: PathHearing, at: int, ids: tuple[int, ...]) -> Token | None:
        """An assistant's next token at a place, from its watch or a request; None if the assistant gives no answer."""
        if ids not in hearing.answers and not await self._listen(hearing, at, ids):
            await self._ask(hearing, [(at, ids)])
        return hearing.answers[ids]

    async def _listen(self, hearing: PathHearing, at: int, ids: tuple[int, ...]) -> bool:
        """Get an assistant's answer at a place from its watch. Return False if the answer needs a request."""
        path = self._path
        watches, assistant = self.watches, hearing.model - 1
        most = path.job.max_tokens + LOOKAHEAD - hearing.first
        while assistant in watches.assistants:
            token = await self._written_after(assistant, ids)
            if token is not None:
                watches.heard(assistant)
                hearing.answers[ids] = path.known_end(token) if hearing.same else token
                if token.prob is None:
                    hearing.hidden.add(ids)
                return True
            if not watches.begin(self._tasks.start, assistant, bytes(path.text[:at]), ids, most):
                return False
        return False

    async def _written_after(self, assistant: int, ids: Sequence[int]) -> Token | None:
        """Wait for the token that an assistant's watch writes after these ids; None if no token is expected soon."""
        while (token := self.watches.wrote_after(assistant, ids)) is None:
            if not self.watches.will_write_after(assistant, ids):
                return None
            await self._path.changed()
        return token

    async def _with_prob(self, hearing: PathHearing, at: int, ids: tuple[int, ...]) -> Token:
        """An assistant's answer at a place, with its probability. Ask again if a watch did not show the probability."""
        token = hearing.answers[ids]
        assert token is not None
        if ids in hearing.hidden and self._needs_q:
            hearing.hidden.remove(ids)
            await self._ask_all(hearing, [(at, ids)])
            token = hearing.answers[ids] = hearing.answers[ids] or token
        return token

    async def _walk(self, hearing: PathHearing, unit: PathUnit) -> bool:
        """Judge one unit (line 3). Return True if the next unit begins where this unit ends."""
        path = self._path
        hearing.starts.add(unit.first)
        if not self._contestable(unit):
            loud = any(self.could_change(at) for at in range(unit.first, min(unit.last, path.bound)))
            path.count(hearing, unjudged=loud)
            hearing.first = unit.last
            return True
        path.count(hearing, off_path=unit.cut)
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
        path.count(hearing, ties=walked.tied)
        self._agree(hearing, unit, walked.heard, tied=walked.tied)
        return True

    async def _walk_text(self, hearing: PathHearing, unit: PathUnit) -> bool:
        """Judge one unit (line 3), using the text that a text-only assistant writes from the unit's start."""
        if unit.first not in hearing.proposals:
            await self._ask_text(hearing, [unit])
        proposal = hearing.proposals[unit.first]
        tokens = () if proposal is None else proposal.tokens
        while (walked := walk_text(self._path, unit, self._path.bound_bytes, tokens)) is None:
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
        """Keep a unit about which an assistant gave no answer."""
        self._path.count(hearing, unanswered=1)
        for mark in self._path.marks[unit.first : unit.last]:
            mark.asked = True
        hearing.first = unit.last

    async def _starve(self, hearing: PathHearing) -> None:
        """Wait for the draft to write more. Only the first wait notifies the other tasks, which may also be waiting."""
        if not hearing.starving:
            hearing.starving = True
            self._path.tell()
        await self._path.changed()

    def _agree(self, hearing: PathHearing, unit: PathUnit, qs: Sequence[Token], *, tied: bool = False) -> None:
        """Record that an assistant agrees with the draft on a unit."""
        path = self._path
        p = least(path.tokens[unit.first : unit.last])
        data = bytes(path.text[unit.start : unit.end])
        count = unit.last - unit.first
        decision = Decision(hearing.model - 1, data, p, least(qs), True, False, data, tied=tied, count=count)
        self._decide(hearing, unit, unit.end + 1, decision)
        hearing.first = unit.last

    async def _asked_again(self, hearing: PathHearing, walked: Walk) -> bool:
        """Ask for a differing choice's probability if a watch did not show it. Return True if the model was asked."""
        differs = walked.difference
        if differs is None or differs.ids not in hearing.hidden or not self._needs_q:
            return False
        await self._with_prob(hearing, differs.at, differs.ids)
        return True

    async def _differ(self, hearing: PathHearing, unit: PathUnit, found: Difference) -> bool:
        """Judge a unit at its first difference. Return True if the next unit begins where this unit ends."""
        path, end = self._path, found.end
        over = min(begun_before(path, unit.first, end), path.bound)  # tokens beyond the bound are lookahead
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
        if not replaces or decision.agreed:  # a word that does not fit into the draft's path leaves no record
            self._decide(hearing, unit, found.at + 1, decision)
        hearing.first = unit.last
        contestable = any(self._is_contestable(n) for n in range(unit.first, min(unit.last, path.bound)))
        if not replaces and contestable:
            hearing.first = next_start(path, unit, end)
        return hearing.first == unit.last

    async def _learn(self, first: int, last: int) -> None:
        """Ask the draft for probabilities that its server did not show because the tokens are parts of characters."""
        path = self._path
        if path.encoder is None:
            return
        missing = [at for at in range(first, last) if path.tokens[at].prob is None and not path.tokens[at].end]
        for at in missing:
            ids = tuple(token.id or 0 for token in path.tokens[:at])
            [found] = await self._calls.propose(
                0,
                bytes(path.text),
                [Question(path.offset(at), ())],
                alternatives=_LISTED,
                paths=[ids],
                number=next(path.asks),
            )
            listed = () if found is None else (found.tokens[0], *found.tokens[0].alternatives)
            for one in listed:
                if one.id == path.tokens[at].id:
                    path.tokens[at] = replace(path.tokens[at], prob=one.prob)

    async def _fire(self, hearing: PathHearing, unit: PathUnit, found: Difference, decision: Decision) -> Firing | None:
        """Find the assistant's word, and the draft's path after the word (line 4).

        Returns:
            None if the word turns out to equal the draft's text, or cannot be put into the draft's path.
        """
        path = self._path
        at, theirs = found.at, found.own[0]
        if theirs.end:
            return Firing(at, decision, unit, None, at, [theirs])
        if hearing.same:
            text = bytes(path.text[:at]) + theirs.data
            own = Restart(unit.first, (theirs.id or 0,), (len(text),), text)
            return Firing(at, decision, unit, own, at, [replace(theirs, alternatives=())])
        written, ended = await self._continuation(hearing, unit, found)
        data = b"".join(token.data for token in written)
        if path.encoder is None:
            way = restart_text(path, at, written)
        else:
            way = await restart(path, unit.first, at, written, path.encoder)
        if way is None:
            path.count(hearing, unanswered=1)
            return None
        goal = max(len(way.text), unit.end)
        goal = goal if ended else min(goal, at + len(data))
        while len(path.text) < goal and not (path.ended or path.over):
            await self._starve(hearing)
        hearing.starving = False
        mine, short = bytes(path.text[at:goal]), not path.ended
        agreed = mine == data[: goal - at] or (short and data.startswith(mine) and len(mine) < goal - at)
        if agreed:
            decision.agreed, decision.text, decision.draft = True, mine, mine
            return None
        path.count(hearing, off_path=way.cut)
        same = next((n for n, (a, b) in enumerate(zip(mine, data, strict=False)) if a != b), min(len(mine), len(data)))
        return Firing(at + same, decision, unit, way, at, written)

    async def _continuation(
        self, hearing: PathHearing, unit: PathUnit, found: Difference
    ) -> tuple[Sequence[Token], bool]:
        """Let an assistant continue from its differing token until two more words follow the first word.

        An assistant that accepts only text writes the unit again. If the draft accepts only text, the first word is
        enough.

        Returns:
            The tokens without an end of sequence, and True if the assistant ends the answer after these tokens.
        """
        path = self._path
        own, ended = [token for token in found.own if not token.end], found.own[-1].end
        before, ids = bytes(path.text[: found.at]), found.ids
        if ids is None and (len(own) > end_of_word(own) and path.encoder is None):
            return own, ended
        start = found.at if ids is not None else unit.start
        tokens = own if ids is not None else []

        def behind() -> list[Token]:
            """The tokens from the difference on, without tokens of the `lead`, which have no bytes."""
            starts = accumulate((len(token.data) for token in tokens), initial=start)
            return [token for token, at in zip(tokens, starts, strict=False) if at >= found.at and token.data]

        over = False

        def take(item: Token | DraftEnd) -> bool:
            nonlocal over
            if isinstance(item, DraftEnd) or item.end:
                over = item.reason == "end" if isinstance(item, DraftEnd) else True
                return True
            tokens.append(item)
            return _is_enough(before, behind())

        if ids is not None:
            after = [*ids, own[0].id or 0]
            while len(tokens) <= 2 * LOOKAHEAD:
                item = await self._written_after(hearing.model - 1, after)
                if item is None:
                    break
                if take(item):
                    return behind(), over
                after.append(item.id or 0)
            if len(tokens) > 2 * LOOKAHEAD:
                return behind(), False
            text = before + b"".join(token.data for token in tokens)
            most, ids = 2 * LOOKAHEAD + 1 - len(tokens), tuple(after)
        else:
            text, most = before[:start], 2 * LOOKAHEAD + len(found.walked)
        command = StartDraft(next(path.numbers), text, most, None, (), ids=ids)
        await self._calls.generate(hearing.model, command, take, question=True)
        again = b"".join(token.data for token in tokens)
        said = b"".join(token.data for token in found.walked)
        return (behind(), over) if ids is not None or again.startswith(said) else (own, ended)

    def _decide(self, hearing: PathHearing, unit: PathUnit, end: int, decision: Decision) -> None:
        """Record a decision, with the number of the last request about a place in the unit before byte `end`."""
        places = asked_places(unit, self._bound_of(unit))
        heard = [hearing.requests[ids] for at, ids in places if ids in hearing.requests and at < end]
        proposal = hearing.proposals.get(unit.first)
        decision.ask = heard[-1] if heard else hearing.requests.get(unit.first)
        decision.strategy = None if proposal is None else proposal.strategy
        if self._path.is_heard(hearing):
            self._path.decisions.append(AboutTokens(unit.first, unit.last, decision))


def _is_enough(before: bytes, tokens: Sequence[Token]) -> bool:
    """Test whether the tokens after a text contain a whole word and the beginnings of two more words."""
    word = end_of_word(tokens)
    end = len(before) + sum(len(token.data) for token in tokens[:word])
    data = before + b"".join(token.data for token in tokens)
    return word < len(tokens) and look(data, end, ended=False) is not None
