"""A fusion along a reference answer: the draft recites the reference, and nothing is ever replaced.

The draft's path is the draft model's own encoding of the reference. The assistant reads it as in a fusion, with the
same units and places (`decoding.readers`). A unit that the draft would write itself is judged unchanged. In any other
unit, the path continues with the draft's own token instead of the reference's token, and ends after the draft's token.
Thus, a verifier is trained on the decisions that it will face in a fusion. If the draft would write the whole reference
itself, the samples are exactly the fusion's decisions.

A walk along the reference collects all places that the models' readings of the reference do not show. These places are
asked about together, and the walk is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from cosd_api.alignment import LONGEST, least, same
from cosd_api.decoding.answer import JudgedPath
from cosd_api.decoding.readers import Reader
from cosd_api.decoding.said import Said, Writing
from cosd_api.forcing.reading import END, ForcedModel, ReferenceReading
from cosd_api.forcing.samples import Label, Sample
from cosd_api.paths.units import PathUnit
from cosd_api.paths.walks import Difference, Walk, begun_before, is_own, next_start, ties
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, Token
from cosd_providers.text import readable

__all__ = ["TeacherForcing"]


class ForcedPath(JudgedPath):
    """The reference; or its beginning, what the draft would write instead of the rest, and an end of sequence.

    Args:
        tokens: the reference's tokens, or those that the draft would write instead.
        final: whether the answer really ends with the path. If False, its continuation is unknown.
        reference: the reference from which the path departs; None for the reference itself.
        wrong: index of the draft's first token that is not the reference's.

    Attributes:
        final: see above.
        wrong: see above; the number of tokens if there is none.
        known: index after the last token that is known.
    """

    def __init__(
        self, tokens: Sequence[Token], *, final: bool, reference: ForcedPath | None = None, wrong: int = 0
    ) -> None:
        super().__init__()
        if reference is not None:
            self.tokens, self.ends = reference.tokens[:wrong], reference.ends[:wrong]
            self.text, self._ids = reference.text[: reference.offset(wrong)], [*reference.ids(wrong)]
        for token in tokens:
            self.add(token)
        self.final, self.known = final, len(self.tokens)
        self.wrong = self.known if reference is None else wrong
        if not self.ended:
            self.add(END)

    @property
    def leaves(self) -> bool:
        """Test whether the path leaves the reference."""
        return self.wrong < len(self.tokens)

    @property
    def bound_bytes(self) -> int:
        """The end of the text. If more text may follow, a difference there counts, too."""
        return len(self.text) + (not self.final)

    def exchanged(self, differs: Difference | None) -> bytes | None:
        """The text up to a difference, then the assistant's token; None if there is no such text."""
        return None if differs is None or differs.theirs.end else bytes(self.text[: differs.at]) + differs.theirs.data

    def covers_wrong(self, over: int, differs: Difference | None) -> bool:
        """Test whether the draft's wrong token is among the judged tokens, or begins within the assistant's token."""
        if not self.leaves or over > self.wrong:
            return self.leaves
        return differs is not None and differs.at + len(differs.theirs.data) > self.offset(self.wrong)


class TeacherForcing:
    """Teacher forcing of two models along a reference (section 3.2, equation 7 of the paper).

    Args:
        draft: the draft.
        reading: the draft's reading of the reference.
        assistant: the assistant.
        known: the assistant's reading of the reference; None if its tokenizer changes the reference.
        reader: the way in which the assistant reads the draft's path.
        ends: whether the answer must end after the reference. If False, the place after the reference is not judged.
    """

    def __init__(
        self,
        draft: ForcedModel,
        reading: ReferenceReading,
        assistant: ForcedModel,
        known: ReferenceReading | None,
        reader: Reader,
        *,
        ends: bool,
    ) -> None:
        self._draft, self._choices, self._assistant, self._known = draft, reading.choices, assistant, known
        self._reader, self._ends, self._by_ids = reader, ends, reading.tokens[0].id is not None
        recited = [self._forced(*one) for one in zip(reading.tokens, reading.choices, strict=True)]
        self._reference = ForcedPath(recited, final=ends)
        self._text = bytes(self._reference.text)
        self._said = Said() if known is None or not reader.takes_ids else Said(known.answers)
        self._missing: dict[Any, bytes] = {}  # keys of places about which to ask the assistant, with the text before
        self._after: dict[int, list[Token | None]] = {}  # the draft's further tokens; None if no more are known
        self._short: dict[int, ForcedPath] = {}  # paths that the draft must continue before they can be judged
        self._samples: list[Sample] = []
        self._skipped = 0

    @staticmethod
    def _forced(token: Token, choice: Token | None) -> Token:
        """A token of the reference with the probability of the draft's choice, which it is unless the draft errs."""
        if choice is None:
            return token
        return replace(token, prob=choice.prob, id=choice.id if token.end and choice.end else token.id)

    async def samples(self) -> tuple[tuple[Sample, ...], int]:
        """Return samples of all units that can be judged, in text order, and the number of all other units.

        Raises:
            ProviderError: a server failed.
        """
        while True:
            self._samples, self._skipped, self._short, self._missing, first = [], 0, {}, {}, 0
            while first < len(self._reference.tokens) - (not self._ends):
                first = await self._judge(first)
            if not (self._short or self._missing):
                return tuple(self._samples), self._skipped
            await self._continue([*self._short.values()])
            await self._ask()

    # ---------------------------------------------------------------------------------------------------- questions

    async def _ask(self) -> None:
        """Ask the assistant about all missing places together."""
        missing, said = self._missing, self._said
        if missing and self._reader.takes_ids:
            said.after |= await self._assistant.next_tokens(missing)
        elif missing:
            found = await self._assistant.propose(self._text, [question for _, question in missing])
            texts = [Writing() if one is None else Writing(one.tokens) for one in found]
            said.wrote |= dict(zip(missing, texts, strict=True))

    async def _continue(self, paths: Sequence[ForcedPath]) -> None:
        """Ask the draft how its own paths go on: by ids for one token, by text for all tokens of a word."""
        if not self._by_ids:
            found = await concurrently([partial(self._written, one) for one in paths])
            self._after |= {own.wrong: [*tokens, None] for own, tokens in zip(paths, found, strict=True)}
        elif paths:
            ids = {own.wrong: own.ids(own.known) for own in paths}
            tokens = await self._draft.next_tokens({ids[own.wrong]: bytes(own.text) for own in paths})
            for wrong, before in ids.items():
                self._after.setdefault(wrong, []).append(tokens[before])

    async def _written(self, own: ForcedPath) -> list[Token]:
        """Return all tokens that a draft that is sent text writes after a path.

        The draft is sent the reference up to the place where the path leaves it, so it must first write its own tokens
        again. If it writes different tokens this time, the result is empty.
        """
        turn, tokens, before = self._draft.turn, list[Token](), own.tokens[own.wrong : own.known]
        context = Context(turn.prompt, self._text[: own.offset(own.wrong)])
        written = turn.provider.generate(context, max_tokens=LONGEST, usage=self._draft.usage)
        async with aclosing(written) as items:
            async for item in items:
                if isinstance(item, Token):
                    tokens.append(item)
        again = [(one.data, one.end) for one in tokens[: len(before)]]
        return tokens[len(before) :] if again == [(one.data, one.end) for one in before] else []

    # ----------------------------------------------------------------------------------------------------- the walk

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
            at = self._take(own, await self._unit(own, at))
        return max(next_start(self._reference, unit, self._reference.ends[wrong]), wrong + 1)

    async def _unit(self, path: ForcedPath, first: int) -> PathUnit:
        unit = await self._reader.unit(path, first, own=False)
        assert unit is not None  # because the path ends with an end of sequence
        return unit

    def _is_wrong(self, at: int) -> bool:
        """Test whether the draft would write a different token from the reference. In a tie, the reference wins."""
        choice, token = self._choices[at], self._reference.tokens[at]
        if choice is None:
            return False
        own = None if token.end else token.id
        return not (is_own(choice, own) or ties(choice, own, 0.0)) if self._by_ids else not same(choice, token)

    def _leave(self, wrong: int) -> ForcedPath:
        """Return the path that consists of the reference up to index `wrong`, then of the draft's known tokens."""
        tokens = list[Token]()
        for token in (self._choices[wrong], *self._after.get(wrong, ())):
            if token is None:
                break
            tokens.append(token)
            if token.end:
                break
        return ForcedPath(tokens, final=tokens[-1].end, reference=self._reference, wrong=wrong)

    def _take(self, path: ForcedPath, unit: PathUnit) -> int:
        """Judge one unit of a path; return the index of the token at which the next unit begins."""
        walked = self._compare(path, unit)
        if walked is None:
            return unit.last
        if self._is_short(path, walked.difference):
            self._short[path.wrong] = path
            return unit.last
        sample = None if walked.silent else self._sample(path, unit, walked)
        if sample is None:
            self._skipped += 1
        else:
            self._samples.append(sample)
        return unit.last if walked.difference is None else next_start(path, unit, walked.difference.end)

    def _compare(self, path: ForcedPath, unit: PathUnit) -> Walk | None:
        """Compare a unit with what the assistant said; None if the assistant must be asked first."""
        reader, said = self._reader, self._said
        if not unit.judged or (reader.tokenwise and path.tokens[unit.first].prob is None):
            return Walk((), silent=True)
        places = reader.places(path, unit)
        if self._known is not None and not reader.takes_ids:
            for place in places:
                if place.key not in said.wrote and (tokens := self._known.answer(place.key[1])) is not None:
                    said.wrote[place.key] = Writing(tokens)
        found = reader.compare(path, unit, said)
        if isinstance(found, Walk):
            return found
        unknown = [one for one in places if one.key not in said.after and one.key not in said.wrote]
        self._missing |= {place.key: bytes(path.text[: place.at]) for place in unknown}
        return None

    # --------------------------------------------------------------------------------------------------- the samples

    def _sample(self, path: ForcedPath, unit: PathUnit, walked: Walk) -> Sample | None:
        """Create the sample of a unit; None if a probability is unknown, or if too little text is known to judge it."""
        differs = walked.difference
        over = unit.last if differs is None else begun_before(path, unit.first, differs.end)
        wrong = path.covers_wrong(over, differs)
        p, q = least(path.tokens[unit.first : over]), least(walked.choices)
        if p is None or q is None or self._is_open(path, differs, wrong=wrong):
            return None
        start, end = (unit.start, unit.end) if differs is None else (differs.at, differs.end)
        mine = bytes(path.text[start:end])
        theirs = mine if differs is None else differs.theirs.data
        label: Label | None = 0
        if wrong:
            label = self._label(path, over, start + len(theirs), differs)
            end = max(self._reference.ends[path.wrong], start + len(theirs))
        reference = self._text[start:end]
        return Sample(p, q, label, differs is None, start, readable(mine), readable(theirs), readable(reference))

    def _label(self, path: ForcedPath, over: int, end: int, differs: Difference | None) -> Label | None:
        """The label of a unit with the draft's wrong token: tokens are compared if units are tokens, else texts."""
        if self._reader.tokenwise:
            right = differs is not None and same(differs.theirs, self._reference.tokens[path.wrong])
        elif self._is_spelled(path, over, end):
            return 0
        elif differs is not None and differs.theirs.end:
            right = self._ends and bytes(path.text[: differs.at]) == self._text
        else:
            theirs = path.exchanged(differs)
            right = theirs is not None and self._text.startswith(theirs)
        return 1 if right else 0 if over <= path.wrong else None

    def _is_spelled(self, path: ForcedPath, over: int, end: int) -> bool:
        """Test whether the path's text equals the reference, up to token index `over` and at least up to byte `end`."""
        stop, ends = max(path.offset(over), end), path.tokens[over - 1].end
        return bytes(path.text[:stop]) == (self._text if ends else self._text[:stop]) and (self._ends or not ends)

    def _is_short(self, path: ForcedPath, differs: Difference | None) -> bool:
        """Test whether the draft must be asked to continue its own text."""
        if not path.leaves or self._reader.tokenwise:
            return False
        known = None in self._after.get(path.wrong, ()) or path.known - path.wrong >= LONGEST
        return not known and self._is_beginning(path, differs)

    def _is_beginning(self, path: ForcedPath, differs: Difference | None) -> bool:
        """Test whether the draft's own text is a prefix of the reference or of the text with the assistant's token."""
        others = [one for one in (self._text, path.exchanged(differs)) if one is not None]
        return not path.final and any(one.startswith(bytes(path.text)) for one in others)

    def _is_open(self, path: ForcedPath, differs: Difference | None, *, wrong: bool) -> bool:
        """Test whether a unit needs a continuation to be judged, because one compared text is a prefix of another."""
        theirs = path.exchanged(differs)
        if self._reader.tokenwise:
            return False
        if not path.leaves:  # the assistant's token may contain what follows the reference
            return not self._ends and theirs is not None and theirs.startswith(self._text)
        return wrong and (self._is_beginning(path, differs) or (theirs is not None and path.text.startswith(theirs)))
