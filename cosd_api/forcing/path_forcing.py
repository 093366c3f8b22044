"""Teacher forcing: find the decisions of a fusion along a reference answer, and the model that is right in each.

The reference takes the place of the draft's text. The draft's path is the draft model's own encoding of the reference,
and the assistant has the same units and places as in a fusion along this path (`paths`, `text_paths`, `differences`). A
unit that the draft would write itself is judged unchanged. In any other unit, the path continues with the draft's own
token instead of the reference's token, and ends after the draft's token. Thus, a verifier is trained on the decisions
that it will face in a fusion. If the draft would write the whole reference itself, the samples are exactly the fusion's
decisions.

If the models share the same token ids, a unit is one token, and both models are sent the reference's own ids before
that token (equations 1, 2 and 7 of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cosd_api.alignment import LONGEST, least
from cosd_api.differences import Difference, Walk, begun_before, is_own, next_start, ties
from cosd_api.forcing.held_models import HeldAssistant, HeldDraft, OwnPath, known_end
from cosd_api.forcing.reading import END
from cosd_api.forcing.samples import Label, Sample
from cosd_api.paths import DraftPath, PathUnit
from cosd_providers.contract import Token
from cosd_providers.text import readable

__all__ = ["PathForcing"]


@dataclass(slots=True)
class _Found:
    """The result of one pass over the reference.

    Attributes:
        samples: a sample for each unit that could be judged.
        skipped: number of units that could not be judged.
        short: paths that the draft must continue before they can be judged, by `OwnPath.wrong`.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    skipped: int = 0
    short: dict[int, OwnPath] = field(default_factory=dict[int, OwnPath])


class PathForcing:
    """Teacher forcing of two models, each on its own path through a reference (section 3.2, equation 7 of the paper).

    Args:
        tokens: the draft model's encoding of the reference, and the end of sequence; without ids if the draft accepts
            only text.
        choices: the draft's most probable token at the place of each token; None if the draft gave no answer.
        draft: the draft.
        assistant: the assistant.
        same: whether the models share the same token ids; if so, tokens are compared by id.
        ends: whether the answer must end after the reference. If False, the place after the reference is not judged.
        end_ids: ids that end an answer of either model; empty if the models have different token ids.
    """

    def __init__(
        self,
        tokens: Sequence[Token],
        choices: Sequence[Token | None],
        draft: HeldDraft,
        assistant: HeldAssistant,
        *,
        same: bool,
        ends: bool,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._draft, self._assistant, self._same, self._ends = draft, assistant, same, ends
        self._choices = [None if one is None else known_end(one, end_ids) for one in choices]
        self._reference = DraftPath()
        for token, choice in zip(tokens, self._choices, strict=True):
            self._reference.add(replace(token, prob=None if choice is None else choice.prob))
        self._text = bytes(self._reference.text)
        self._behind: dict[int, list[Token | None]] = {}  # the tokens that `HeldDraft.go_on` returned for each path

    async def samples(self) -> tuple[tuple[Sample, ...], int]:
        """Return samples of all units that can be judged, in text order, and the number of all other units.

        Raises:
            ProviderError: a server failed.
        """
        while True:
            found, first = _Found(), 0
            while first < len(self._reference.tokens) - (not self._ends):
                first = await self._judge(first, found)
            for wrong, tokens in (await self._draft.go_on(found.short.values()) if found.short else {}).items():
                self._behind.setdefault(wrong, []).extend(tokens)
            if not (await self._assistant.ask() or found.short):
                return tuple(found.samples), found.skipped

    async def _judge(self, first: int, found: _Found) -> int:
        """Judge the unit that begins at index `first` of the reference; return the index at which the next unit begins.

        If the draft would write a different token at any place in the unit, judge the units of the draft's own path
        instead.
        """
        unit = await self._assistant.unit(self._reference, first)
        wrong = next((at for at in range(unit.first, unit.last) if self._is_wrong(at)), None)
        if wrong is None:
            return self._take(self._reference, unit, found)
        own, at = self._written(wrong), first
        while at <= wrong:
            at = self._take(own.path, await self._assistant.unit(own.path, at), found, own)
        return max(next_start(self._reference, unit, self._reference.ends[wrong]), wrong + 1)

    def _is_wrong(self, at: int) -> bool:
        """Test whether the draft would write a different token from the reference. In a tie, the reference wins."""
        choice, token = self._choices[at], self._reference.tokens[at]
        if choice is None:
            return False
        if token.id is None and not token.end:
            return (choice.data, choice.end) != (token.data, token.end)
        return not is_own(choice, token.id) and not ties(choice, token.id, 0.0)

    def _written(self, wrong: int) -> OwnPath:
        """Return the path that consists of the reference up to index `wrong`, then of the draft's known tokens."""
        path = DraftPath()
        for token in (*self._reference.tokens[:wrong], self._choices[wrong], *self._behind.get(wrong, ())):
            if token is None:
                break
            path.add(token)
            if token.end:
                return OwnPath(path, wrong, len(path.tokens))
        written = len(path.tokens)
        path.add(END)
        return OwnPath(path, wrong, written)

    def _take(self, path: DraftPath, unit: PathUnit, found: _Found, own: OwnPath | None = None) -> int:
        """Judge one unit of a path; return the index of the token at which the next unit begins.

        Args:
            path: the draft's path.
            unit: the unit.
            found: the results, to which the sample is added.
            own: the same path as an `OwnPath`, if it leaves the reference; else None.
        """
        walked: Walk | None = Walk((), silent=True)
        if unit.judged:
            walked = self._assistant.walk(path, unit, ended=self._ends if own is None else own.ended)
        if walked is None:
            return unit.last
        if own is not None and self._is_short(own, walked.difference):
            found.short[own.wrong] = own
            return unit.last
        sample = None if walked.silent else self._sample(path, unit, walked, own)
        if sample is None:
            found.skipped += 1
        else:
            found.samples.append(sample)
        return unit.last if walked.difference is None else next_start(path, unit, walked.difference.end)

    def _sample(self, path: DraftPath, unit: PathUnit, walked: Walk, own: OwnPath | None) -> Sample | None:
        """Create the sample of a unit; None if a probability is unknown, or if too little text is known to judge it."""
        differs = walked.difference
        over = unit.last if differs is None else begun_before(path, unit.first, differs.end)
        wrong = own if own is not None and _holds(own, over, differs) else None
        p, q = least(path.tokens[unit.first : over]), least(walked.heard)
        is_open = self._goes_on(differs) if own is None else wrong is not None and self._is_open(wrong, differs)
        if p is None or q is None or is_open:
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

    def _is_short(self, own: OwnPath, differs: Difference | None) -> bool:
        """Test whether the draft must be asked to continue its own text."""
        known = own.ended or None in self._behind.get(own.wrong, ()) or own.written - own.wrong >= LONGEST
        return not known and self._is_beginning(own, differs)

    def _is_beginning(self, own: OwnPath, differs: Difference | None) -> bool:
        """Test whether the draft's own text is a prefix of the reference or of the text with the assistant's token."""
        if self._same or own.ended:
            return False
        text = bytes(own.path.text)
        others = [self._text]
        if differs is not None and not differs.theirs.end:
            others.append(text[: differs.at] + differs.theirs.data)
        return any(one.startswith(text) for one in others)

    def _is_open(self, own: OwnPath, differs: Difference | None) -> bool:
        """Test whether the unit needs a continuation to be judged, because one compared text is a prefix of another."""
        if self._same:
            return False
        if self._is_beginning(own, differs) or differs is None or differs.theirs.end:
            return self._is_beginning(own, differs)
        return own.path.text.startswith(own.path.text[: differs.at] + differs.theirs.data)

    def _goes_on(self, differs: Difference | None) -> bool:
        """Test whether the assistant's token contains the end of a reference after which more text may follow."""
        if self._same or self._ends or differs is None or differs.theirs.end:
            return False
        return (self._text[: differs.at] + differs.theirs.data).startswith(self._text)

    def _is_spelled(self, path: DraftPath, over: int, end: int) -> bool:
        """Test whether the path's text equals the reference, up to token index `over` and at least up to byte `end`."""
        stop = max(path.offset(over), end)
        if self._same or (path.tokens[over - 1].end and not self._ends):
            return False
        return bytes(path.text[:stop]) == (self._text if path.tokens[over - 1].end else self._text[:stop])

    def _has(self, own: OwnPath, differs: Difference) -> bool:
        """Test whether the reference continues with the assistant's token at the difference."""
        theirs, before = differs.theirs, bytes(own.path.text[: differs.at])
        if theirs.end:
            return self._ends and before == self._text
        if self._same:
            return theirs.id == self._reference.tokens[own.wrong].id
        return self._text.startswith(before + theirs.data)


def _holds(own: OwnPath, over: int, differs: Difference | None) -> bool:
    """Test whether the draft's wrong token is among the judged tokens, or begins within the assistant's token."""
    if over > own.wrong:
        return True
    return differs is not None and differs.at + len(differs.theirs.data) > own.path.offset(own.wrong)
