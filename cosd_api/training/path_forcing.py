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

from cosd_api.alignment import least
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
"""Asks the assistant after some of its ids, each given with the text that they spell."""

_END = Token(b"", None, end=True)


@dataclass(slots=True)
class _Found:
    """The result of one pass over the reference.

    Attributes:
        samples: one for each unit that could be judged.
        skipped: number of the others.
        missing: ids after which the assistant is yet to be asked, each with their text.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    skipped: int = 0
    missing: dict[tuple[int, ...], bytes] = field(default_factory=dict[tuple[int, ...], bytes])


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
        self._learn(answers)

    async def samples(self, ask: Ask) -> tuple[tuple[Sample, ...], int]:
        """A sample for each unit that could be judged, in the order of the text, and the number of the others.

        Raises:
            ProviderError: a server failed.
        """
        while True:
            found, first = _Found(), 0
            while first < len(self._reference.tokens) - (not self._ends):
                first = await self._judge(first, found)
            if not found.missing:
                return tuple(found.samples), found.skipped
            self._learn(await ask(found.missing))

    def _learn(self, answers: Answers) -> None:
        known = self._known_end if self._encoder is None else lambda token: token
        self._answers |= {ids: None if token is None else known(token) for ids, token in answers.items()}

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
        path, at = self._written(wrong), first
        while at <= wrong:
            at = self._take(path, await self._unit(path, at), found, wrong=wrong)
        return max(next_start(self._reference, unit, self._reference.ends[wrong]), wrong + 1)

    def _is_wrong(self, at: int) -> bool:
        """True if the draft would write another token than the reference has; of equals it writes the reference's."""
        choice, token = self._choices[at], self._reference.tokens[at]
        own = None if token.end else token.id
        return choice is not None and not is_own(choice, own) and not ties(choice, own, 0.0)

    def _written(self, wrong: int) -> DraftPath:
        """The reference as far as the draft would write it, and the draft's own token behind that."""
        choice, path = self._choices[wrong], DraftPath()
        assert choice is not None
        for token in (*self._reference.tokens[:wrong], choice, *([] if choice.end else [_END])):
            path.add(token)
        return path

    def _take(self, path: DraftPath, unit: PathUnit, found: _Found, *, wrong: int | None = None) -> int:
        """Judge one unit of the draft's path; the index of the token at which the next one begins.

        Args:
            path: the draft's path.
            unit: the unit.
            found: takes the sample.
            wrong: index of the last token of the path, which is not the reference's.
        """
        walked = walk(path, unit, unit.end + 1, self._answers, DEFAULT_TIE)
        if walked.missing is not None:
            places = asked_places(unit, unit.end + 1)
            found.missing |= {ids: bytes(path.text[:at]) for at, ids in places if ids not in self._answers}
            return unit.last
        sample = None if unit.encoding is None or walked.silent else self._sample(path, unit, walked, wrong)
        if sample is None:
            found.skipped += 1
        else:
            found.samples.append(sample)
        return unit.last if walked.difference is None else next_start(path, unit, walked.difference.end)

    def _sample(self, path: DraftPath, unit: PathUnit, walked: Walk, wrong: int | None) -> Sample | None:
        """The sample of a unit; None if a probability is unknown, or the draft may yet write what the reference has."""
        differs = walked.difference
        over = unit.last if differs is None else begun_before(path, unit.first, differs.end)
        right = wrong is None or over <= wrong
        p, q = least(path.tokens[unit.first : over]), least(walked.heard)
        if p is None or q is None or not (right or self._is_settled(path, differs, wrong)):
            return None
        if differs is None:
            start, end = unit.start, unit.end
            theirs = mine = bytes(path.text[start:end])
        else:
            start, end = differs.at, differs.end
            mine, theirs = bytes(path.text[start:end]), differs.theirs.data
        label: Label | None = 0 if right else None
        if not right and differs is not None and self._has(path, differs, wrong):
            label = 1
        stop = end if right or wrong is None else max(self._reference.ends[wrong], start)
        reference = self._text[start:stop]
        return Sample(p, q, label, differs is None, start, readable(mine), readable(theirs), readable(reference))

    def _is_settled(self, path: DraftPath, differs: Difference | None, wrong: int | None) -> bool:
        """False if what would follow one of the texts decides: one is the beginning of another in other tokens."""
        if self._encoder is None or wrong is None:
            return True
        text, ended = bytes(path.text), path.tokens[wrong].end
        if not ended and self._text.startswith(text):
            return False
        if differs is None or differs.theirs.end:
            return True
        theirs = text[: differs.at] + differs.theirs.data
        return not text.startswith(theirs) and (ended or not theirs.startswith(text))

    def _has(self, path: DraftPath, differs: Difference, wrong: int | None) -> bool:
        """Test whether the reference has what the assistant would write."""
        theirs = differs.theirs
        if theirs.end:
            return self._ends and bytes(path.text[: differs.at]) == self._text
        if self._encoder is None:
            assert wrong is not None
            return theirs.id == self._reference.tokens[wrong].id
        return self._text.startswith(bytes(path.text[: differs.at]) + theirs.data)
