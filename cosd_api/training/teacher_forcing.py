"""Teacher forcing: what two models would write at each place of a reference answer, and which of them is right.

The reference is cut into the draft's tokens and these into units, as the decoder cuts a draft. Each unit is judged span
by span as in `cosd_api.alignment`: the draft's tokens are those of the reference while it would write them, and then
the first that differs; the assistant's are what it would write from the same place. So a verifier is trained on the
decisions that it will have to make, with one tokenizer and with two.

One scoring request to each model answers at every boundary of its own encoding of the reference. With two tokenizers
the draft may end a token inside one of the assistant's. Those places are `missing`, and are asked about separately.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosd_api.alignment import Unit, least, span, starts_unit
from cosd_api.training.dataset import Label, Sample
from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.text import readable

__all__ = ["TeacherForcing"]


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the draft's tokens of the reference, or the end of sequence after it.

    Attributes:
        start: byte offset in the answer.
        token: the token, without probability.
        predicted: the token that the draft would write here.
    """

    start: int
    token: Token
    predicted: Token

    @property
    def stop(self) -> int:
        """Byte offset of its end."""
        return self.start + len(self.token.data)

    @property
    def right(self) -> bool:
        """True where the draft would write this very token."""
        return (self.predicted.data, self.predicted.end) == (self.token.data, self.token.end)


@dataclass(slots=True)
class _Walk:
    """The result of one pass over the reference.

    Attributes:
        samples: one for each place that could be judged.
        skipped: number of places that could not.
        missing: questions that the assistant has yet to answer.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    skipped: int = 0
    missing: list[Question] = field(default_factory=list[Question])


class TeacherForcing:
    """Both models held to one reference answer (section 3.2 and equation 7 of the paper).

    Args:
        answer: the reference.
        draft: the draft's proposals at every boundary of its own encoding (`Provider.propose` without questions).
        assistant: the assistant's, likewise.
        unit: the unit to judge.
        ends: whether the end of sequence is right after the answer. If False, that place does not count.

    Attributes:
        missing: questions for the assistant that its proposals do not answer; pass its answers to `add_answers`.
    """

    def __init__(
        self,
        answer: bytes,
        draft: Sequence[Proposal | None],
        assistant: Sequence[Proposal | None],
        *,
        unit: Unit,
        ends: bool = True,
    ) -> None:
        self._answer = answer
        self._unit: Unit = unit
        self._ends = ends
        self._assistant = _Predictions.of(answer, assistant)
        self._units, self._unknown = _units(answer, _Predictions.of(answer, draft), unit, ends=ends)
        self._answers: dict[int, Sequence[Token]] | None = None
        self.missing = self._walk().missing

    def add_answers(self, proposals: Sequence[Proposal | None]) -> None:
        """Add the assistant's answers to the `missing` questions, in their order."""
        pairs = zip(self.missing, proposals, strict=True)
        self._answers = {asked.start: () if answer is None else answer.tokens for asked, answer in pairs}

    def samples(self) -> tuple[tuple[Sample, ...], int]:
        """A sample for each place that could be judged, in the order of the text, and the number of other places."""
        found = self._walk()
        return tuple(found.samples), found.skipped

    def _walk(self) -> _Walk:
        found = _Walk(skipped=self._unknown)
        for unit in self._units:
            i = 0
            while i < len(unit):
                passed = self._judge(unit, i, found)
                if passed is None and self._answers is None:  # ask about the rest of the unit in one go
                    found.missing += [self._question(unit, at) for at in range(i, len(unit))]
                    break
                found.skipped += passed is None
                i += passed or 1
        return found

    def _judge(self, unit: Sequence[_Part], first: int, found: _Walk) -> int | None:
        """Judge a unit from its token `first`, as far as one continuation of the assistant's reaches.

        Returns:
            Number of the unit's tokens passed, judged or not; None where the continuation ends before it differs.
        """
        drafted = self._drafted(unit, first)
        proposed = self._proposed(unit[first].start, drafted)
        i = a = 0
        while i < len(drafted):
            if a == len(proposed):
                return i or None
            begin, a_begin = i, a
            i, a, agreed = span(drafted, proposed, i, a, whole_tokens=self._unit == "token")
            if agreed is None and i < len(drafted):
                return begin or None
            if agreed is None:  # the unit, or the known part of the draft, ends inside one of the assistant's tokens
                found.skipped += not unit[first + i - 1].right
                break
            at = unit[first + begin].start
            sample = self._sample(drafted[begin:i], proposed[a_begin:a], at, unit[first + i - 1].stop, agreed=agreed)
            if sample is None:
                found.skipped += 1
            else:
                found.samples.append(sample)
            if not agreed:
                break
        return i

    def _sample(
        self, draft: Sequence[Token], assistant: Sequence[Token], at: int, stop: int, *, agreed: bool
    ) -> Sample | None:
        """The sample of one span; None if a probability is unknown."""
        p, q = least(draft), least(assistant)
        if p is None or q is None:
            return None
        label: Label | None = None
        if self._is_right(draft, at, stop):
            label = 0
        elif not agreed and self._is_right(assistant, at, stop):
            label = 1
        return Sample(p, q, label, agreed, at, _text(draft), _text(assistant), readable(self._answer[at:stop]))

    def _is_right(self, tokens: Sequence[Token], at: int, stop: int) -> bool:
        """Test whether the reference has these tokens at byte `at`; with unit "token", exactly up to `stop`."""
        text = b"".join(token.data for token in tokens)
        if tokens[-1].end:
            return self._ends and at + len(text) == len(self._answer)
        return self._answer.startswith(text, at) and (self._unit == "word" or at + len(text) == stop)

    def _drafted(self, parts: Sequence[_Part], first: int) -> list[Token]:
        """The draft's tokens in a unit from `first`: those of the reference, then the first that differs.

        A token that would begin another unit, such as the end of sequence, is left out unless it is the first.
        """
        tokens: list[Token] = []
        for at in range(first, len(parts)):
            predicted = parts[at].predicted
            if tokens and starts_unit(self._unit, [part.token for part in parts[:at]], predicted):
                break
            tokens.append(predicted)
            if not parts[at].right:
                break
        return tokens

    def _proposed(self, start: int, drafted: Sequence[Token]) -> Sequence[Token]:
        """The assistant's continuation from `start`, as far as it is known and reaches beside `drafted`.

        It follows the assistant's own encoding: after the same bytes in other tokens its next token may differ.
        """
        if self._answers is not None and start in self._answers:
            return self._answers[start]
        tokens: list[Token] = []
        theirs, at, stop = self._assistant, start, start + sum(len(token.data) for token in drafted)
        while at in theirs.tokens:
            tokens.append(theirs.tokens[at])
            after = theirs.after(at)
            if after is None or after >= stop or tokens[-1].end or tokens[-1].data != self._answer[at:after]:
                break
            at = after
        return tokens

    def _question(self, parts: Sequence[_Part], at: int) -> Question:
        tokens = self._drafted(parts, at)
        return Question(parts[at].start, tuple(token.data for token in tokens), word=self._unit == "word")


@dataclass(frozen=True, slots=True)
class _Predictions:
    """One model's predictions at the boundaries of its own encoding of the reference.

    Attributes:
        tokens: the predicted token by byte offset.
        boundaries: the known boundaries in order; the last is the answer's end.
        gaps: boundaries after which the next boundary is unknown.
    """

    tokens: dict[int, Token]
    boundaries: list[int]
    gaps: set[int]

    @classmethod
    def of(cls, answer: bytes, proposals: Sequence[Proposal | None]) -> _Predictions:
        """By byte offset. A missing proposal leaves a gap, unless it is the last one."""
        tokens: dict[int, Token] = {}
        gaps: set[int] = set()
        last = -1
        for at, proposal in enumerate(proposals):
            if proposal is not None:
                last = proposal.start
                tokens[last] = proposal.tokens[0]
            elif at < len(proposals) - 1:
                gaps.add(last)
        return cls(tokens, sorted({*tokens, len(answer)}), gaps)

    def after(self, at: int) -> int | None:
        """The end of the token that starts at `at`; None if unknown, and for the end of sequence."""
        following = bisect_right(self.boundaries, at)
        return None if at in self.gaps or following == len(self.boundaries) else self.boundaries[following]


def _units(answer: bytes, draft: _Predictions, unit: Unit, *, ends: bool) -> tuple[list[list[_Part]], int]:
    """The reference in the draft's tokens, by units, and the number of places where these are unknown."""
    units: list[list[_Part]] = []
    unknown = int(draft.boundaries[0] > 0 or -1 in draft.gaps)  # before the first boundary
    begun = False
    for start in draft.boundaries if ends else draft.boundaries[:-1]:
        predicted, after = draft.tokens.get(start), draft.after(start)
        is_end = start == draft.boundaries[-1]
        if predicted is None or (after is None and not is_end):
            unknown += 1
            begun = False
            continue
        token = Token(b"", None, end=True) if is_end else Token(answer[start:after], None)
        if begun and not starts_unit(unit, [part.token for part in units[-1]], token):
            units[-1].append(_Part(start, token, predicted))
        else:
            units.append([_Part(start, token, predicted)])
        begun = True
    return units, unknown


def _text(tokens: Sequence[Token]) -> str:
    return readable(b"".join(token.data for token in tokens))
