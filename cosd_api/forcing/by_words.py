"""Teacher forcing by words: find the decisions of a fusion along a reference answer, and the model that is right.

The reference takes the place of the draft's text. The draft's path is the draft model's own encoding of the reference,
and the assistant has the same units and places as in a fusion along this path (`paths`, `text_paths`, `differences`). A
unit that the draft would write itself is judged unchanged. In any other unit, the path continues with the draft's own
token instead of the reference's token, and ends after the draft's token. Thus, a verifier is trained on the decisions
that it will face in a fusion. If the draft would write the whole reference itself, the samples are exactly the fusion's
decisions.

A walk along the reference collects the places with unknown answers, and then asks about all of these places together.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from cosd_api.alignment import LONGEST, least
from cosd_api.differences import Difference, Walk, asked_places, begun_before, is_own, next_start, ties, walk, walk_text
from cosd_api.forcing.reading import END, HeldModel, ReferenceReading
from cosd_api.forcing.samples import Label, Sample
from cosd_api.paths import DraftPath, Encoder, PathUnit, next_unit
from cosd_api.settings import DEFAULT_TIE
from cosd_api.text_paths import next_text_unit, unit_question
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, Question, Token, WordEnds
from cosd_providers.text import readable

__all__ = ["AssistantByIds", "AssistantByText", "WordForcing"]


class AssistantByIds:
    """An assistant that is sent ids, and is asked at the boundaries of its own tokens.

    Args:
        model: the model.
        encoder: its encoder.
        reading: its reading of the reference; None if its tokenizer changes the reference.
    """

    def __init__(self, model: HeldModel, encoder: Encoder, reading: ReferenceReading | None) -> None:
        self._model, self._encoder = model, encoder
        self._answers = {} if reading is None else reading.answers
        self._missing: dict[tuple[int, ...], bytes] = {}

    async def unit(self, path: DraftPath, first: int) -> PathUnit | None:
        """Find the unit that begins at index `first` of a path; None only if the path has no end of sequence."""
        return await next_unit(path, first, self._encoder)

    def walk(self, path: DraftPath, unit: PathUnit, *, ended: bool) -> Walk | None:  # noqa: ARG002
        """Compare the assistant's tokens with a unit; None if the assistant must be asked first (`ask`).

        Args:
            path: the path.
            unit: the unit, for which `PathUnit.judged` must be true.
            ended: whether the answer really ends with the path. If False, its continuation is unknown.
        """
        walked = walk(path, unit, unit.end + 1, self._answers, DEFAULT_TIE)
        if walked.missing is None:
            return walked
        places = asked_places(unit, unit.end + 1)
        self._missing |= {ids: bytes(path.text[:at]) for at, ids in places if ids not in self._answers}
        return None

    async def ask(self) -> bool:
        """Ask about the places for which `walk` lacked the assistant's tokens; return False if there were none."""
        missing, self._missing = self._missing, {}
        self._answers |= await self._model.next_tokens(missing) if missing else {}
        return bool(missing)


class AssistantByText:
    """An assistant that is sent text, and is asked for its tokens from the beginning of a unit; see `AssistantByIds`.

    As long as the assistant would write the reference itself, its reading of the reference already contains its tokens,
    and no further question is needed.

    Args:
        model: the model.
        reading: its reading of the reference.
        text: the reference.
        words: word ends of the assistant's tokenizer; None if the tokenizer is unknown.
    """

    def __init__(self, model: HeldModel, reading: ReferenceReading, text: bytes, words: WordEnds | None) -> None:
        self._model, self._text, self._words = model, text, words
        self._own = dict(zip(reading.starts, zip(reading.tokens, reading.choices, strict=True), strict=True))
        self._answers: dict[Question, tuple[Token, ...]] = {}
        self._missing: dict[Question, None] = {}

    async def unit(self, path: DraftPath, first: int) -> PathUnit | None:
        """Find the unit that begins at index `first` of a path."""
        return next_text_unit(path, first, self._words)

    def walk(self, path: DraftPath, unit: PathUnit, *, ended: bool) -> Walk | None:
        """Compare the assistant's tokens with a unit; None if the assistant must be asked first."""
        question = unit_question(path, unit)
        tokens = self._read(question) or self._answers.get(question)
        if tokens is None:
            self._missing[question] = None
            return None
        return walk_text(path, unit, len(path.text) + (not ended), tokens)

    def _read(self, question: Question) -> Sequence[Token] | None:
        """Look up the tokens that answer a question in the reading; None if the reading does not contain them all."""
        wanted, at, tokens = b"".join(question.tokens), question.start, list[Token]()
        while at in self._own:
            own, choice = self._own[at]
            if choice is None:
                return None
            tokens.append(choice)
            rest = wanted[at - question.start :]
            if choice.end or not (rest.startswith(choice.data) and len(rest) > len(choice.data)):
                return tokens  # the answer ends, differs from the reference, or covers the whole question
            if choice.data != own.data:
                return None
            at += len(own.data)
        return None

    async def ask(self) -> bool:
        """Ask about the units for which `walk` lacked the assistant's tokens; return False if there were none."""
        missing, self._missing = [*self._missing], {}
        if missing:
            proposals = await self._model.propose(self._text, missing)
            answers = [() if one is None else one.tokens for one in proposals]
            self._answers |= dict(zip(missing, answers, strict=True))
        return bool(missing)


@dataclass(frozen=True, slots=True)
class _OwnPath:
    """A path that begins with tokens of the reference and continues with the tokens that the draft would write instead.

    Attributes:
        path: tokens of the reference, followed by the draft's own tokens and an end of sequence.
        wrong: index of the draft's first own token.
        written: index after the draft's last own token.
    """

    path: DraftPath
    wrong: int
    written: int

    @property
    def ended(self) -> bool:
        """True if the draft would end its answer here. If False, the continuation after the path is unknown."""
        return self.path.tokens[self.written - 1].end

    def holds(self, over: int, differs: Difference | None) -> bool:
        """Test whether the draft's wrong token is among the judged tokens, or begins within the assistant's token."""
        if over > self.wrong:
            return True
        return differs is not None and differs.at + len(differs.theirs.data) > self.path.offset(self.wrong)


class WordForcing:
    """Teacher forcing of two models, each on its own path through a reference (section 3.2, equation 7 of the paper).

    Args:
        draft: the draft.
        reading: the draft's reading of the reference.
        assistant: the assistant.
        ends: whether the answer must end after the reference. If False, the place after the reference is not judged.
    """

    def __init__(
        self, draft: HeldModel, reading: ReferenceReading, assistant: AssistantByIds | AssistantByText, *, ends: bool
    ) -> None:
        self._draft, self._choices, self._assistant, self._ends = draft, reading.choices, assistant, ends
        self._reference = DraftPath()
        for token, choice in zip(reading.tokens, reading.choices, strict=True):
            self._reference.add(replace(token, prob=None if choice is None else choice.prob))
        self._text = bytes(self._reference.text)
        self._behind: dict[int, list[Token | None]] = {}  # the draft's further tokens; None if no more are known
        self._samples: list[Sample] = []
        self._skipped = 0
        self._short: dict[int, _OwnPath] = {}  # paths that the draft must continue before they can be judged

    async def samples(self) -> tuple[tuple[Sample, ...], int]:
        """Return samples of all units that can be judged, in text order, and the number of all other units.

        Raises:
            ProviderError: a server failed.
        """
        while True:
            self._samples, self._skipped, self._short, first = [], 0, {}, 0
            while first < len(self._reference.tokens) - (not self._ends):
                first = await self._judge(first)
            await self._continue([*self._short.values()])
            if not (await self._assistant.ask() or self._short):
                return tuple(self._samples), self._skipped

    async def _continue(self, paths: Sequence[_OwnPath]) -> None:
        """Ask the draft how its own paths go on: by ids for one token, by text for all tokens of a word."""
        if self._reference.tokens[0].id is None:
            for own, tokens in zip(
                paths, await concurrently([partial(self._written, one) for one in paths]), strict=True
            ):
                self._behind[own.wrong] = [*tokens, None]
        elif paths:
            ids = [tuple([token.id or 0 for token in own.path.tokens[: own.written]]) for own in paths]
            found = await self._draft.next_tokens(dict(zip(ids, [bytes(own.path.text) for own in paths], strict=True)))
            for own, before in zip(paths, ids, strict=True):
                self._behind.setdefault(own.wrong, []).append(found[before])

    async def _written(self, own: _OwnPath) -> list[Token]:
        """Return all tokens that a draft that is sent text writes after a path.

        The draft is sent the reference up to the place where the path leaves it, so it must first write its own tokens
        again. If it writes different tokens this time, the result is empty.
        """
        turn, tokens, before = self._draft.turn, list[Token](), own.path.tokens[own.wrong : own.written]
        context = Context(turn.prompt, self._text[: own.path.offset(own.wrong)])
        written = turn.provider.generate(context, max_tokens=LONGEST, usage=self._draft.usage)
        async with aclosing(written) as items:
            async for item in items:
                if isinstance(item, Token):
                    tokens.append(item)
        again = [(one.data, one.end) for one in tokens[: len(before)]]
        return tokens[len(before) :] if again == [(one.data, one.end) for one in before] else []

    async def _judge(self, first: int) -> int:
        """Judge the unit that begins at index `first` of the reference; return the index at which the next unit begins.

        If the draft would write a different token at any place in the unit, judge the units of the draft's own path
        instead.
        """
        unit = await self._unit(self._reference, first)
        wrong = next((at for at in range(unit.first, unit.last) if self._is_wrong(at)), None)
        if wrong is None:
            return self._take(self._reference, unit)
        own, at = self._leave(wrong), first
        while at <= wrong:
            at = self._take(own.path, await self._unit(own.path, at), own)
        return max(next_start(self._reference, unit, self._reference.ends[wrong]), wrong + 1)

    async def _unit(self, path: DraftPath, first: int) -> PathUnit:
        unit = await self._assistant.unit(path, first)
        assert unit is not None  # because the path ends with an end of sequence
        return unit

    def _is_wrong(self, at: int) -> bool:
        """Test whether the draft would write a different token from the reference. In a tie, the reference wins."""
        choice, token = self._choices[at], self._reference.tokens[at]
        if choice is None:
            return False
        if token.id is None and not token.end:
            return (choice.data, choice.end) != (token.data, token.end)
        return not is_own(choice, token.id) and not ties(choice, token.id, 0.0)

    def _leave(self, wrong: int) -> _OwnPath:
        """Return the path that consists of the reference up to index `wrong`, then of the draft's known tokens."""
        path = DraftPath()
        for token in (*self._reference.tokens[:wrong], self._choices[wrong], *self._behind.get(wrong, ())):
            if token is None:
                break
            path.add(token)
            if token.end:
                return _OwnPath(path, wrong, len(path.tokens))
        written = len(path.tokens)
        path.add(END)
        return _OwnPath(path, wrong, written)

    def _take(self, path: DraftPath, unit: PathUnit, own: _OwnPath | None = None) -> int:
        """Judge one unit of a path; return the index of the token at which the next unit begins.

        Args:
            path: the draft's path.
            unit: the unit.
            own: the same path as an `_OwnPath`, if it leaves the reference; else None.
        """
        walked: Walk | None = Walk((), silent=True)
        if unit.judged:
            walked = self._assistant.walk(path, unit, ended=self._ends if own is None else own.ended)
        if walked is None:
            return unit.last
        if own is not None and self._is_short(own, walked.difference):
            self._short[own.wrong] = own
            return unit.last
        sample = None if walked.silent else self._sample(path, unit, walked, own)
        if sample is None:
            self._skipped += 1
        else:
            self._samples.append(sample)
        return unit.last if walked.difference is None else next_start(path, unit, walked.difference.end)

    def _sample(self, path: DraftPath, unit: PathUnit, walked: Walk, own: _OwnPath | None) -> Sample | None:
        """Create the sample of a unit; None if a probability is unknown, or if too little text is known to judge it."""
        differs = walked.difference
        over = unit.last if differs is None else begun_before(path, unit.first, differs.end)
        wrong = own if own is not None and own.holds(over, differs) else None
        p, q = least(path.tokens[unit.first : over]), least(walked.heard)
        is_open = self._goes_on(differs) if own is None else wrong is not None and self._is_open(wrong, differs)
        if p is None or q is None or is_open:
            return None
        start, end = (unit.start, unit.end) if differs is None else (differs.at, differs.end)
        mine = bytes(path.text[start:end])
        theirs = mine if differs is None else differs.theirs.data
        label: Label | None = 0 if own is None or over <= own.wrong else None
        if wrong is not None:
            if self._is_spelled(path, over, start + len(theirs)):
                label = 0
            elif differs is not None and self._has(wrong, differs):
                label = 1
            end = max(self._reference.ends[wrong.wrong], start + len(theirs))
        reference = self._text[start:end]
        return Sample(p, q, label, differs is None, start, readable(mine), readable(theirs), readable(reference))

    def _is_short(self, own: _OwnPath, differs: Difference | None) -> bool:
        """Test whether the draft must be asked to continue its own text."""
        known = own.ended or None in self._behind.get(own.wrong, ()) or own.written - own.wrong >= LONGEST
        return not known and self._is_beginning(own, differs)

    def _is_beginning(self, own: _OwnPath, differs: Difference | None) -> bool:
        """Test whether the draft's own text is a prefix of the reference or of the text with the assistant's token."""
        text, others = bytes(own.path.text), [self._text]
        if differs is not None and not differs.theirs.end:
            others.append(text[: differs.at] + differs.theirs.data)
        return not own.ended and any(one.startswith(text) for one in others)

    def _is_open(self, own: _OwnPath, differs: Difference | None) -> bool:
        """Test whether the unit needs a continuation to be judged, because one compared text is a prefix of another."""
        if self._is_beginning(own, differs):
            return True
        if differs is None or differs.theirs.end:
            return False
        return own.path.text.startswith(own.path.text[: differs.at] + differs.theirs.data)

    def _goes_on(self, differs: Difference | None) -> bool:
        """Test whether the assistant's token contains the end of a reference after which more text may follow."""
        if self._ends or differs is None or differs.theirs.end:
            return False
        return (self._text[: differs.at] + differs.theirs.data).startswith(self._text)

    def _is_spelled(self, path: DraftPath, over: int, end: int) -> bool:
        """Test whether the path's text equals the reference, up to token index `over` and at least up to byte `end`."""
        if path.tokens[over - 1].end:
            return self._ends and bytes(path.text[: max(path.offset(over), end)]) == self._text
        stop = max(path.offset(over), end)
        return bytes(path.text[:stop]) == self._text[:stop]

    def _has(self, own: _OwnPath, differs: Difference) -> bool:
        """Test whether the reference continues with the assistant's token at the difference."""
        before = bytes(own.path.text[: differs.at])
        if differs.theirs.end:
            return self._ends and before == self._text
        return self._text.startswith(before + differs.theirs.data)
