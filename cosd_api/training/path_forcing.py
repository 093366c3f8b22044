"""Teacher forcing by ids: the decisions of a fusion along a reference answer, and which model is right in each.

The reference stands in place of what the draft writes: its path is the draft model's own encoding of it, and the
assistant's units and places are those of a fusion of that path (`paths`, `differences`). A unit that the draft would
write itself is judged as it is. In another one the draft's path is taken to go on with the token that the draft would
write in place of the reference's, and to end there. So a verifier is trained on the decisions that it will have to
make: on a text that the draft writes itself, the samples are the decisions of the fusion.

With the same ids a unit is one token after the reference's own ids (equations 1, 2 and 7 of the paper).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cosd_api.alignment import LONGEST, least
from cosd_api.differences import (
    Difference,
    Walk,
    asked_places,
    begun_before,
    is_own,
    next_start,
    ties,
    walk,
)
from cosd_api.paths import DraftPath, Encoder, PathUnit, next_token, next_unit
from cosd_api.settings import DEFAULT_TIE
from cosd_api.training.dataset import Label, Sample
from cosd_providers.contract import Piece, Token
from cosd_providers.text import readable

__all__ = ["PathForcing"]

Answers = Mapping[tuple[int, ...], Token | None]
"""A model's most probable token after some of its ids of the answer; None where it has none."""
Ask = Callable[[Mapping[tuple[int, ...], bytes]], Awaitable[Answers]]
"""Asks a model after some of its ids, each given with the text that they spell."""

_END = Token(b"", None, end=True)


@dataclass(slots=True)
class _Found:
    """The result of one pass over the reference.

    Attributes:
        samples: one for each unit that could be judged.
        skipped: number of the others.
        missing: ids after which the assistant is yet to be asked, each with their text.
        unwritten: likewise of the draft.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    skipped: int = 0
    missing: dict[tuple[int, ...], bytes] = field(default_factory=dict[tuple[int, ...], bytes])
    unwritten: dict[tuple[int, ...], bytes] = field(default_factory=dict[tuple[int, ...], bytes])


@dataclass(frozen=True, slots=True)
class _Own:
    """A path that leaves the reference: what the draft would write in place of one of its tokens.

    Attributes:
        path: the reference before, the draft's own tokens, and an end of sequence.
        wrong: index of the first of its own tokens.
        written: index behind the last.
    """

    path: DraftPath
    wrong: int
    written: int

    @property
    def ended(self) -> bool:
        """The draft would end there; else the end of sequence stands for what nobody knows."""
        return self.path.tokens[self.written - 1].end

    @property
    def ids(self) -> tuple[int, ...]:
        """All but the end of sequence."""
        return tuple([token.id or 0 for token in self.path.tokens[: self.written]])


class PathForcing:
    """Two models held to one reference answer, each on its own path (section 3.2 and equation 7 of the paper).

    Args:
        pieces: the draft model's encoding of the reference.
        choices: its most probable token before each of these tokens, and behind the last; None where it has none.
        answers: the assistant's answers that are known already.
        encoder: of the assistant; None if it has the draft's ids.
        ends: whether the end of sequence is right behind the answer. If False, that place does not count.
        end_ids: ids that end either model, where they have the same.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        choices: Sequence[Token | None],
        answers: Answers,
        encoder: Encoder | None,
        *,
        ends: bool,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._ends, self._end_ids, self._encoder = ends, end_ids, encoder
        self._choices = [None if one is None else self._known_end(one) for one in choices]
        self._reference = DraftPath()
        for piece, choice in zip(pieces, self._choices, strict=False):
            self._reference.add(Token(piece.data, None if choice is None else choice.prob, id=piece.id))
        last = self._choices[-1]
        self._reference.add(replace(_END, prob=None if last is None else last.prob))
        self._text = bytes(self._reference.text)
        self._answers: dict[tuple[int, ...], Token | None] = {}
        self._drafted: dict[tuple[int, ...], Token | None] = {}
        self._learn(answers)

    async def samples(self, ask_draft: Ask, ask_assistant: Ask) -> tuple[tuple[Sample, ...], int]:
        """A sample for each unit that could be judged, in the order of the text, and the number of the others.

        Raises:
            ProviderError: a server failed.
        """
        while True:
            found, first = _Found(), 0
            while first < len(self._reference.tokens) - (not self._ends):
                first = await self._judge(first, found)
            if not (found.missing or found.unwritten):
                return tuple(found.samples), found.skipped
            if found.unwritten:
                self._drafted |= await ask_draft(found.unwritten)
            if found.missing:
                self._learn(await ask_assistant(found.missing))

    def _learn(self, answers: Answers) -> None:
        self._answers |= {ids: None if token is None else self._known_end(token) for ids, token in answers.items()}

    def _known_end(self, token: Token) -> Token:
        """A token as an end of sequence, where its id ends either of two models with the same ids."""
        return replace(token, data=b"", end=True) if token.id in self._end_ids else token

    async def _unit(self, path: DraftPath, first: int) -> PathUnit:
        if self._encoder is None:
            return next_token(path, first)
        unit = await next_unit(path, first, self._encoder)
        assert unit is not None  # the path has an end
        return unit

    async def _judge(self, first: int, found: _Found) -> int:
        """Judge the unit that begins with a token of the reference; the index of the token behind it."""
        unit = await self._unit(self._reference, first)
        wrong = next((at for at in range(unit.first, unit.last) if self._is_wrong(at)), None)
        if wrong is None:
            return self._take(self._reference, unit, found)
        own, at = self._written(wrong), first
        while at <= wrong:
            at = self._take(own.path, await self._unit(own.path, at), found, own)
        return max(next_start(self._reference, unit, self._reference.ends[wrong]), wrong + 1)

    def _is_wrong(self, at: int) -> bool:
        """True if the draft would write another token than the reference has; of equals it writes the reference's."""
        choice, token = self._choices[at], self._reference.tokens[at]
        own = None if token.end else token.id
        return choice is not None and not is_own(choice, own) and not ties(choice, own, 0.0)

    def _written(self, wrong: int) -> _Own:
        """The reference as far as the draft would write it, and behind that its own tokens as far as they are known."""
        path, ids = DraftPath(), tuple([token.id or 0 for token in self._reference.tokens[:wrong]])
        for token in self._reference.tokens[:wrong]:
            path.add(token)
        own = self._choices[wrong]
        while own is not None:
            path.add(own)
            if own.end:
                return _Own(path, wrong, len(path.tokens))
            ids = (*ids, own.id or 0)
            own = self._drafted.get(ids)
        written = len(path.tokens)
        path.add(_END)
        return _Own(path, wrong, written)

    def _take(self, path: DraftPath, unit: PathUnit, found: _Found, own: _Own | None = None) -> int:
        """Judge one unit of the draft's path; the index of the token at which the next one begins.

        Args:
            path: the draft's path.
            unit: the unit.
            found: takes the sample.
            own: the path, if it leaves the reference.
        """
        walked = walk(path, unit, unit.end + 1, self._answers, DEFAULT_TIE)
        if walked.missing is not None:
            places = asked_places(unit, unit.end + 1)
            found.missing |= {ids: bytes(path.text[:at]) for at, ids in places if ids not in self._answers}
            return unit.last
        if own is not None and self._is_short(own, walked.difference):
            found.unwritten[own.ids] = bytes(path.text)
            return unit.last
        sample = None if unit.encoding is None or walked.silent else self._sample(path, unit, walked, own)
        if sample is None:
            found.skipped += 1
        else:
            found.samples.append(sample)
        return unit.last if walked.difference is None else next_start(path, unit, walked.difference.end)

    def _sample(self, path: DraftPath, unit: PathUnit, walked: Walk, own: _Own | None) -> Sample | None:
        """The sample of a unit; None if a probability or what the draft would write is unknown."""
        differs = walked.difference
        over = unit.last if differs is None else begun_before(path, unit.first, differs.end)
        wrong = own if own is not None and _holds(own, over, differs) else None
        p, q = least(path.tokens[unit.first : over]), least(walked.heard)
        if p is None or q is None or (wrong is not None and self._is_open(wrong, differs)):
            return None
        if differs is None:
            start, end = unit.start, unit.end
            theirs = mine = bytes(path.text[start:end])
        else:
            start, end = differs.at, differs.end
            mine, theirs = bytes(path.text[start:end]), differs.theirs.data
        label: Label | None = 0 if own is None or over <= own.wrong else None
        if wrong is not None:
            if self._is_spelled(path, over, start + len(theirs)):
                label = 0
            elif differs is not None and self._has(wrong, differs):
                label = 1
            end = max(self._reference.ends[wrong.wrong], start + len(theirs))
        reference = self._text[start:end]
        return Sample(p, q, label, differs is None, start, readable(mine), readable(theirs), readable(reference))

    def _is_short(self, own: _Own, differs: Difference | None) -> bool:
        """Test whether the draft is to be asked how its own text would go on."""
        known = own.ended or own.ids in self._drafted or own.written - own.wrong >= LONGEST
        return not known and self._is_beginning(own, differs)

    def _is_beginning(self, own: _Own, differs: Difference | None) -> bool:
        """Test whether the draft's own text is the beginning of what the reference, or the assistant, has there."""
        if self._encoder is None or own.ended:
            return False
        text = bytes(own.path.text)
        others = [self._text]
        if differs is not None and not differs.theirs.end:
            others.append(text[: differs.at] + differs.theirs.data)
        return any(one.startswith(text) for one in others)

    def _is_open(self, own: _Own, differs: Difference | None) -> bool:
        """Test whether what would follow decides: one text is the beginning of another, in other tokens."""
        if self._encoder is None:
            return False
        if self._is_beginning(own, differs) or differs is None or differs.theirs.end:
            return self._is_beginning(own, differs)
        return own.path.text.startswith(own.path.text[: differs.at] + differs.theirs.data)

    def _is_spelled(self, path: DraftPath, over: int, end: int) -> bool:
        """Test whether the draft's own tokens before index `over`, and to byte `end`, spell the reference."""
        stop = max(path.offset(over), end)
        if self._encoder is None or (path.tokens[over - 1].end and not self._ends):
            return False
        return bytes(path.text[:stop]) == (self._text if path.tokens[over - 1].end else self._text[:stop])

    def _has(self, own: _Own, differs: Difference) -> bool:
        """Test whether the reference has what the assistant would write."""
        theirs, before = differs.theirs, bytes(own.path.text[: differs.at])
        if theirs.end:
            return self._ends and before == self._text
        if self._encoder is None:
            return theirs.id == self._reference.tokens[own.wrong].id
        return self._text.startswith(before + theirs.data)


def _holds(own: _Own, over: int, differs: Difference | None) -> bool:
    """Test whether the draft's wrong token is among those judged, or within what the assistant would write."""
    if over > own.wrong:
        return True
    return differs is not None and differs.at + len(differs.theirs.data) > own.path.offset(own.wrong)
