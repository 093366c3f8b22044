"""Four ways in which an assistant reads the draft's path, one for each `Route`.

A reader answers four questions. Each answer is a function of the path and of what the assistant has said, so no answer
depends on time:

    unit          the tokens that it judges together next; None: the draft has not written far enough
    compare       agreement or difference; or the place about which the assistant has to be asked first
    replacement   what its word puts into the path; or what has to be written first
    early         a place about which it can be asked already, although its unit is not complete

`SameIds` implements equations 1 and 2 of the paper, `OwnIds` and `ByText` equation 3 made exact, and `Literal` equation
3 as it is printed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from cosd_api.alignment import Decision, same, ties
from cosd_api.decoding.answer import LOOKAHEAD, AnswerPath, Judge, JudgedPath, Replacement
from cosd_api.decoding.calls import Calls
from cosd_api.decoding.said import Ids, Said, Source, Writing
from cosd_api.paths.cuts import is_safe_cut, look
from cosd_api.paths.encoding import Encoder
from cosd_api.paths.restart import Restart, end_of_word, restart
from cosd_api.paths.text_only import next_text_unit, restart_text, unit_question
from cosd_api.paths.units import PathUnit, next_unit
from cosd_api.paths.walks import Difference, Walk, asked_places, is_own, walk, walk_text
from cosd_providers.contract import Provider, Question, Token
from cosd_providers.tokenizers import words_of


class KeyedPlace(NamedTuple):
    """A place: its byte offset in the answer, and the key in `Said` of what the assistant says there."""

    at: int
    key: Any


@dataclass(frozen=True, slots=True)
class UnwrittenText:
    """Text that the assistant has to write before its word is complete.

    Attributes:
        at: byte offset in the answer from which it writes.
        ids: its ids before that offset; None if it takes no ids.
        text: the text before that offset.
        most: maximum number of tokens.
        enough: returns whether the tokens so far are enough.
        key: the key in `Said` of a text that was written without ids.
    """

    at: int
    ids: Ids | None
    text: bytes
    most: int
    enough: Callable[[Sequence[Token]], bool]
    key: Hashable = None


class Pending(Enum):
    """Reasons why a word is not put into the path, now or ever."""

    DRAFT = auto()  # the draft has to write more before it is known whether the texts differ
    AGREED = auto()  # the word spells what the draft wrote
    UNFIT = auto()  # the word has no place in the draft's path


class Reader(ABC):
    """The way in which one assistant reads the path.

    Attributes:
        model: index of the model.
        takes_ids: whether the assistant is asked after ids.
        tokenwise: whether every unit is one draft token.
        listed: number of other tokens that the assistant lists with each token.
        cuts: whether a unit can begin at every safe cut.
    """

    takes_ids: ClassVar[bool] = True
    tokenwise: ClassVar[bool] = False

    def __init__(self, model: int) -> None:
        self.model = model
        self.listed = 0
        self.cuts = True

    @abstractmethod
    async def unit(self, answer: JudgedPath, first: int, *, own: bool) -> PathUnit | None:
        """The unit that begins with token `first`; `own` if the assistant wrote the word before it."""

    @abstractmethod
    def places(self, answer: JudgedPath, unit: PathUnit) -> Sequence[KeyedPlace]:
        """The places of a unit about which the assistant may be asked."""

    @abstractmethod
    def compare(self, answer: JudgedPath, unit: PathUnit, said: Said) -> Walk | KeyedPlace | None:
        """Compare a unit with what the assistant has said; None if the draft has to write more first."""

    @abstractmethod
    async def ask(self, calls: Calls, answer: AnswerPath, places: Sequence[KeyedPlace], said: Said) -> None:
        """Ask about places, in one request."""

    @abstractmethod
    async def replacement(
        self, answer: AnswerPath, unit: PathUnit, found: Difference, decision: Decision, said: Said
    ) -> Replacement | UnwrittenText | Pending:
        """Find the word that replaces draft tokens at a difference."""

    async def early(
        self,
        answer: AnswerPath,  # noqa: ARG002 - see `ByIds`
        judge: Judge,  # noqa: ARG002
        *,
        likely: bool,  # noqa: ARG002
    ) -> KeyedPlace | None:
        """A place about which the assistant can be asked now, although the unit is not complete; None by default.

        With `likely`, a place qualifies whose ids may still change.
        """
        return None

    def read_token(self, answer: AnswerPath, token: Token) -> Token:  # noqa: ARG002 - see `SameIds`
        """The assistant's token as it is judged."""
        return token


class ByIds(Reader):
    """Readers of assistants that are asked after ids.

    Args:
        model: index of the model.
        tie: largest difference of log probabilities at which the assistant's two most probable ids count as equal.
        alternatives: number of other tokens to list with each answer.
        seen: number of these tokens that a verdict uses.
    """

    def __init__(self, model: int, tie: float, alternatives: int = 1, seen: int = 1) -> None:
        super().__init__(model)
        self.listed, self._tie, self._seen = alternatives, tie, seen

    async def early(self, answer: AnswerPath, judge: Judge, *, likely: bool) -> KeyedPlace | None:  # noqa: ARG002
        """The start of the answer, before the draft has written anything."""
        return None if answer.tokens or judge.first or () in judge.said.after else KeyedPlace(0, ())

    async def ask(self, calls: Calls, answer: AnswerPath, places: Sequence[KeyedPlace], said: Said) -> None:
        """Ask for the next token after the ids before each place."""
        number, questions = next(answer.asks), [Question(one.at, ()) for one in places]
        found = await calls.propose(
            self.model,
            bytes(answer.text),
            questions,
            alternatives=self.listed,
            paths=[one.key for one in places],
            number=number,
        )
        for place, proposal in zip(places, found, strict=True):
            token = None if proposal is None else self.read_token(answer, proposal.tokens[0])
            said.note(place.key, token, Source(number, place.at))


class SameIds(ByIds):
    """An assistant with the draft's ids: each unit is one token, and nothing is encoded (equations 1 and 2)."""

    tokenwise = True

    async def unit(self, answer: JudgedPath, first: int, *, own: bool) -> PathUnit | None:  # noqa: ARG002
        """The next token."""
        return _token(answer, first)

    def places(self, answer: JudgedPath, unit: PathUnit) -> Sequence[KeyedPlace]:
        """The place of the token."""
        return [KeyedPlace(unit.start, answer.ids(unit.first))]

    def compare(self, answer: JudgedPath, unit: PathUnit, said: Said) -> Walk | KeyedPlace | None:
        """Compare two ids. A tie, too, is between ids: of two different ends, one is no tie of the other."""
        mine, [place] = answer.tokens[unit.first], self.places(answer, unit)
        if place.key not in said.after:
            return place
        theirs = said.after[place.key]
        if theirs is None:
            return Walk((), silent=True)
        if len(theirs.alternatives) > self._seen:  # the others are listed for the record alone
            theirs = replace(theirs, alternatives=theirs.alternatives[: self._seen])
        if not same(mine, theirs) and ties(mine, theirs, self._tie):
            return Walk((theirs,), tied=True)
        return _walked(unit, place.key, mine, theirs)

    async def replacement(
        self,
        answer: AnswerPath,
        unit: PathUnit,
        found: Difference,
        decision: Decision,
        said: Said,
    ) -> Replacement | UnwrittenText | Pending:
        """The assistant's token."""
        return _exchanged(answer, unit, found, decision, said.after.get(found.ids or ()) or found.theirs)

    def read_token(self, answer: AnswerPath, token: Token) -> Token:
        """The token, which is an end if its id ends either model."""
        return answer.known_end(token)


class Literal(Reader):
    """An assistant that is compared token by token as text, after the text before each token (equation 3 as printed).

    Args:
        model: index of the model.
        alternatives: number of other tokens to list with each answer.
    """

    takes_ids = False
    tokenwise = True

    def __init__(self, model: int, alternatives: int) -> None:
        super().__init__(model)
        self._also: Any = {"alternatives": alternatives} if alternatives else {}

    async def unit(self, answer: JudgedPath, first: int, *, own: bool) -> PathUnit | None:  # noqa: ARG002
        """The next token."""
        return _token(answer, first)

    def places(self, answer: JudgedPath, unit: PathUnit) -> Sequence[KeyedPlace]:
        """The place of the token. The question contains the draft's token."""
        question = Question(unit.start, (answer.tokens[unit.first].data,))
        return [KeyedPlace(unit.start, (bytes(answer.text[: unit.start]), question))]

    def compare(self, answer: JudgedPath, unit: PathUnit, said: Said) -> Walk | KeyedPlace | None:
        """Compare the texts of two tokens."""
        [place] = self.places(answer, unit)
        if place.key not in said.wrote:
            return place
        tokens = said.wrote[place.key].tokens
        if not tokens:
            return Walk((), silent=True)
        return _walked(unit, None, answer.tokens[unit.first], tokens[0])

    async def ask(self, calls: Calls, answer: AnswerPath, places: Sequence[KeyedPlace], said: Said) -> None:
        """Ask for the assistant's token after the text before each place."""
        last = places[-1]
        text = bytes(answer.text[: last.at]) + last.key[1].tokens[0]
        await _ask_text(self.model, calls, answer, text, places, said, self._also)

    async def replacement(
        self,
        answer: AnswerPath,
        unit: PathUnit,
        found: Difference,
        decision: Decision,
        said: Said,  # noqa: ARG002
    ) -> Replacement | UnwrittenText | Pending:
        """The assistant's token."""
        return _exchanged(answer, unit, found, decision, found.theirs)


class OwnIds(ByIds):
    """An assistant that reads its own encoding of the draft's text (equation 3, made exact).

    Args:
        model: index of the model.
        encoder: encodes as the assistant does.
        tie: see `ByIds`.
    """

    def __init__(self, model: int, encoder: Encoder, tie: float) -> None:
        super().__init__(model, tie)
        self._encoder, self.cuts = encoder, encoder.cuts

    async def unit(self, answer: JudgedPath, first: int, *, own: bool) -> PathUnit | None:
        """The text up to the next common boundary at which a word starts; see `paths.units.next_unit`."""
        return await next_unit(answer, first, self._encoder, own=own)

    def places(self, answer: JudgedPath, unit: PathUnit) -> Sequence[KeyedPlace]:
        """The boundaries of the assistant's tokens in the unit."""
        return [KeyedPlace(at, ids) for at, ids in asked_places(unit, _bound(answer, unit))]

    async def early(self, answer: AnswerPath, judge: Judge, *, likely: bool) -> KeyedPlace | None:
        """The place at which the next unit starts, if it is a safe cut: nothing after it changes the ids before it.

        A `likely` place is the first unanswered one in the encoding of the text so far. The ids of such a place may
        change until the unit is complete. A question about other ids is useless, but never wrong.
        """
        first, start = judge.first, answer.offset(judge.first)
        if first >= len(answer.tokens):
            return await super().early(answer, judge, likely=likely)
        text, after = answer.written, judge.said.after
        certain = self._encoder.cuts and is_safe_cut(text, start)
        if answer.tokens[first].end or len(text) <= start or not (likely or certain):
            return None
        encoding = await self._encoder.upto(text, len(text) if likely else start)
        count = None if encoding is None else encoding.count(start)
        if encoding is None or count is None:
            return None
        ids = encoding.ids[:count]
        while likely and count < len(encoding.ids) and (theirs := after.get(ids)) is not None:
            if not is_own(theirs, encoding.ids[count]):
                return None
            count += 1
            ids = encoding.ids[:count]
        at = encoding.offset(count)
        return None if ids in after or at >= min(len(text), answer.bound_bytes) else KeyedPlace(at, ids)

    def compare(self, answer: JudgedPath, unit: PathUnit, said: Said) -> Walk | KeyedPlace | None:
        """Compare token by token, up to the first difference."""
        found = walk(answer, unit, _bound(answer, unit), said.after, self._tie)
        return found if found.missing is None else KeyedPlace(*found.missing)

    async def replacement(
        self, answer: AnswerPath, unit: PathUnit, found: Difference, decision: Decision, said: Said
    ) -> Replacement | UnwrittenText | Pending:
        """The assistant's word, as soon as it has written what decides where the word ends."""
        if found.theirs.end:
            return _ending(answer, unit, found, decision)
        assert found.ids is not None
        before, own, ended = bytes(answer.text[: found.at]), list[Token](), False
        cuts = answer.encoder is None or answer.encoder.cuts
        enough = False
        for token in said.words(found.ids):
            enough = enough or token is None or token.end
            if token is None or token.end:
                ended = token is not None
                break
            own.append(token)
            if enough := _is_enough(before, own, cuts=cuts):
                break
        if not enough and len(own) <= 2 * LOOKAHEAD:
            text, size = before + b"".join(token.data for token in own), len(own)
            return UnwrittenText(
                len(text),
                (*found.ids, *(token.id or 0 for token in own)),
                text,
                2 * LOOKAHEAD + 1 - size,
                lambda more: _is_enough(before, [*own[:size], *more], cuts=cuts),
            )
        return await _placed(answer, unit, found, decision, [one for one in own if one.data], ended=ended)


class ByText(Reader):
    """An assistant that takes no ids: it is asked at safe cuts for its own text of a whole unit.

    Args:
        model: index of the model.
        provider: the model.
    """

    takes_ids = False

    def __init__(self, model: int, provider: Provider) -> None:
        super().__init__(model)
        self._provider = provider

    async def unit(self, answer: JudgedPath, first: int, *, own: bool) -> PathUnit | None:
        """The text up to the next place at which a text may be cut; see `paths.text_only.next_text_unit`."""
        return next_text_unit(answer, first, await words_of(self._provider), own=own)

    def places(self, answer: JudgedPath, unit: PathUnit) -> Sequence[KeyedPlace]:
        """The unit's start. The question contains the draft's text of the unit."""
        key = bytes(answer.text[: unit.start]), unit_question(answer, unit)
        return [KeyedPlace(unit.start, key)] if unit.judged else []

    def compare(self, answer: JudgedPath, unit: PathUnit, said: Said) -> Walk | KeyedPlace | None:
        """Compare the assistant's text with the draft's."""
        [place] = self.places(answer, unit)
        if place.key not in said.wrote:
            return place
        return walk_text(answer, unit, answer.bound_bytes, said.wrote[place.key].tokens)

    async def ask(self, calls: Calls, answer: AnswerPath, places: Sequence[KeyedPlace], said: Said) -> None:
        """Ask for the assistant's own text from the start of each unit."""
        await _ask_text(self.model, calls, answer, bytes(answer.text), places, said, {})

    async def replacement(
        self, answer: AnswerPath, unit: PathUnit, found: Difference, decision: Decision, said: Said
    ) -> Replacement | UnwrittenText | Pending:
        """The assistant's word, from its text of the unit or from the same text written again and further."""
        if found.theirs.end:
            return _ending(answer, unit, found, decision)
        own, ended = [token for token in found.own if not token.end], found.own[-1].end
        if len(own) <= end_of_word(own) or answer.encoder is not None:
            before, skipped = bytes(answer.text[: found.at]), found.at - unit.start
            cuts = answer.encoder is not None and answer.encoder.cuts

            def since(tokens: Sequence[Token]) -> list[Token]:
                starts = accumulate((len(token.data) for token in tokens), initial=0)
                return [token for token, at in zip(tokens, starts, strict=False) if at >= skipped and token.data]

            key = before[: unit.start], tuple(found.walked)
            if key not in said.wrote:
                most = 2 * LOOKAHEAD + len(found.walked)
                text = before[: unit.start]
                return UnwrittenText(
                    unit.start, None, text, most, lambda more: _is_enough(before, since(more), cuts=cuts), key
                )
            again = said.wrote[key]
            if _spell(again.tokens).startswith(_spell(found.walked)):
                own, ended = since(again.tokens), again.ended
        return await _placed(answer, unit, found, decision, own, ended=ended)


async def _ask_text(
    model: int,
    calls: Calls,
    answer: AnswerPath,
    text: bytes,
    places: Sequence[KeyedPlace],
    said: Said,
    also: dict[str, Any],
) -> None:
    """Ask an assistant for its own text at some places, in one request."""
    number = next(answer.asks)
    found = await calls.propose(model, text, [one.key[1] for one in places], number=number, **also)
    for place, proposal in zip(places, found, strict=True):
        writing = Writing() if proposal is None else Writing(proposal.tokens)
        said.note_text(place.key, writing, Source(number, place.at, None if proposal is None else proposal.strategy))


def _token(answer: JudgedPath, first: int) -> PathUnit:
    """One draft token as a unit."""
    return PathUnit(first, first + 1, answer.offset(first), answer.offset(first + 1), plain=True)


def _walked(unit: PathUnit, ids: Ids | None, mine: Token, theirs: Token) -> Walk:
    """The comparison of a unit that is one token."""
    differs = None if same(mine, theirs) else Difference(unit.start, unit.end, ids, (theirs,), (theirs,))
    return Walk((theirs,), differs)


def _bound(answer: JudgedPath, unit: PathUnit) -> int:
    """The byte offset before which the places of a unit are judged."""
    return unit.end + 1 if answer.tokens[unit.first].end else answer.bound_bytes


def _exchanged(answer: AnswerPath, unit: PathUnit, found: Difference, decision: Decision, theirs: Token) -> Replacement:
    """The replacement of one token by another."""
    text = None if theirs.end else bytes(answer.text[: found.at]) + theirs.data
    return Replacement(unit, decision, found.at, found.at, (theirs,), unit.first, text=text, whole=True)


def _ending(answer: AnswerPath, unit: PathUnit, found: Difference, decision: Decision) -> Replacement:
    """The replacement that ends the answer."""
    keep = bisect_right(answer.ends, found.at, hi=len(answer.tokens) - answer.ended)
    return Replacement(unit, decision, found.at, found.at, tuple(found.own), keep)


async def _placed(
    answer: AnswerPath, unit: PathUnit, found: Difference, decision: Decision, own: Sequence[Token], *, ended: bool
) -> Replacement | Pending:
    """The replacement by a word; `ended` if the assistant ends the answer after its tokens."""
    at, way = found.at, await _restarted(answer, unit, found, own)
    if way is None:
        return Pending.UNFIT
    data = _spell(own)
    goal = max(len(way.text), unit.end)
    goal = goal if ended else min(goal, at + len(data))
    mine = bytes(answer.text[at:goal])
    common = next((n for n, (a, b) in enumerate(zip(mine, data, strict=False)) if a != b), min(len(mine), len(data)))
    if common == min(len(mine), len(data)):  # no difference so far
        if len(answer.text) < goal and not answer.complete:
            return Pending.DRAFT
        if mine == data[: goal - at] or (not answer.ended and data.startswith(mine) and len(mine) < goal - at):
            decision.agreed, decision.text, decision.draft = True, mine, mine
            return Pending.AGREED
    return Replacement(unit, decision, at, at + common, tuple(own), way.keep, way.ids, way.ends, way.text, cut=way.cut)


async def _restarted(answer: AnswerPath, unit: PathUnit, found: Difference, own: Sequence[Token]) -> Restart | None:
    """The draft's path after an assistant's word."""
    if answer.encoder is None:
        return restart_text(answer, found.at, own)
    return await restart(answer, unit.first, found.at, own, answer.encoder)


def _spell(tokens: Sequence[Token]) -> bytes:
    return b"".join(token.data for token in tokens)


def _is_enough(before: bytes, tokens: Sequence[Token], *, cuts: bool) -> bool:
    """Test whether tokens after a text hold a whole word and what its encoding depends on."""
    shown = [token for token in tokens if token.data]  # white space of a template has no bytes
    word = end_of_word(shown) if shown else 0
    end = len(before) + len(_spell(shown[:word]))
    return 0 < word < len(shown) and look(before + _spell(shown), end, ended=False, cuts=cuts) is not None
