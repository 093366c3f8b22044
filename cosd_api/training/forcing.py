"""Two models held to a reference answer (teacher forcing): what each would have written where, and who was right.

The reference is cut into the draft's own tokens, and these into units, as the decoder cuts a draft. Each unit is
judged span by span as the decoder judges it (`cosd_api.alignment`), from the same places: the draft's tokens are those
of the reference for as long as it would write them, and then the first that is none of it; the assistant's are what it
would write from there. So what is trained on is what will be decided, with one tokenizer and with two.

One scoring request to each model answers at every boundary of its own encoding of the reference. With two tokenizers
the draft may end a token where the assistant does not, and after a difference it goes on from there: such places are
`missing`, and are asked about as the decoder asks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosd_api.alignment import Unit, least, span, starts_unit
from cosd_api.training.examples import Label, Sample
from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.text import readable

__all__ = ["Forcing"]


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the draft's own tokens of the reference, or the end of sequence behind it.

    Attributes:
        start: byte offset in the answer.
        token: the token; its probability is not known.
        said: what the draft would write there.
    """

    start: int
    token: Token
    said: Token

    @property
    def stop(self) -> int:
        """Byte offset of its end."""
        return self.start + len(self.token.data)

    @property
    def right(self) -> bool:
        """Whether the draft would write this very token."""
        return (self.said.data, self.said.end) == (self.token.data, self.token.end)


@dataclass(slots=True)
class _Walked:
    """What came of some places.

    Attributes:
        samples: of those that could be judged.
        skipped: how many could not.
        missing: what the assistant would have to be asked.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    skipped: int = 0
    missing: list[Question] = field(default_factory=list[Question])


class Forcing:
    """Both models, held to one reference answer (section 3.2 and equation 7 of the paper).

    Args:
        answer: the reference.
        draft: what the draft would write at every boundary of its own encoding (`Provider.propose` without questions).
        assistant: the same of the assistant.
        unit: what is judged together.
        ends: whether the end of sequence is right behind the answer. Otherwise that place does not count.

    Attributes:
        missing: what the assistant is to be asked beside: places that its own boundaries do not answer.
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
        self._theirs = _Said.of(answer, assistant)
        self._units, self._unknown = _units(answer, _Said.of(answer, draft), unit, ends=ends)
        self._heard: dict[int, Sequence[Token]] | None = None
        self.missing = self._walk().missing

    def hear(self, proposals: Sequence[Proposal | None]) -> None:
        """Takes the assistant's answers to what was `missing`, in its order."""
        told = zip(self.missing, proposals, strict=True)
        self._heard = {asked.start: () if proposal is None else proposal.tokens for asked, proposal in told}

    def samples(self) -> tuple[tuple[Sample, ...], int]:
        """A sample for each place that could be judged, in the order of the text; and how many could not."""
        found = self._walk()
        return tuple(found.samples), found.skipped

    def _walk(self) -> _Walked:
        found = _Walked(skipped=self._unknown)
        for unit in self._units:
            i = 0
            while i < len(unit):
                passed = self._judge(unit, i, found)
                if passed is None and self._heard is None:  # whatever comes of the answer is asked about at once
                    found.missing += [_question(unit, at, self._unit) for at in range(i, len(unit))]
                    break
                found.skipped += passed is None
                i += passed or 1
        return found

    def _judge(self, unit: Sequence[_Part], first: int, found: _Walked) -> int | None:
        """Judges a unit from its token `first` on, as far as one chain of the assistant's goes.

        Returns:
            How many of its tokens were passed, judged or not; None where the chain ends before it differs.
        """
        drafted = _drafted(unit, first, self._unit)
        chain = self._chain(unit[first].start, drafted)
        i = a = 0
        while i < len(drafted):
            if a == len(chain):
                return i or None
            begin, a_begin = i, a
            i, a, agreed = span(drafted, chain, i, a, whole_tokens=self._unit == "token")
            if agreed is None and i < len(drafted):
                return begin or None
            if agreed is None:  # inside of the assistant's token ends the unit, or what is known of the draft
                found.skipped += not unit[first + i - 1].right
                break
            at = unit[first + begin].start
            sample = self._sample(drafted[begin:i], chain[a_begin:a], at, unit[first + i - 1].stop, agreed=agreed)
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
        """The sample of one span; None where a probability is not told."""
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
        """Whether what one would write at byte `at` stands there; token by token, if they are judged so."""
        text = b"".join(token.data for token in tokens)
        if tokens[-1].end:
            return self._ends and at + len(text) == len(self._answer)
        return self._answer.startswith(text, at) and (self._unit == "word" or at + len(text) == stop)

    def _chain(self, start: int, drafted: Sequence[Token]) -> Sequence[Token]:
        """What the assistant would write from a place on, as far as it is known and matters beside the draft's.

        By its own encoding: where it would write the same bytes in other tokens, what it says next may be another.
        """
        if self._heard is not None and start in self._heard:
            return self._heard[start]
        chain: list[Token] = []
        theirs, at, stop = self._theirs, start, start + sum(len(token.data) for token in drafted)
        while at in theirs.said:
            chain.append(theirs.said[at])
            after = theirs.after(at)
            if after is None or after >= stop or chain[-1].end or chain[-1].data != self._answer[at:after]:
                break
            at = after
        return chain


@dataclass(frozen=True, slots=True)
class _Said:
    """What a model would write at the boundaries of its own encoding of the reference.

    Attributes:
        said: by place.
        own: the boundaries as far as they are known, in order; the last is the answer's end.
        gaps: those of them behind which there is another one that is not known.
    """

    said: dict[int, Token]
    own: list[int]
    gaps: set[int]

    @classmethod
    def of(cls, answer: bytes, proposals: Sequence[Proposal | None]) -> _Said:
        """By place. Of a proposal that there is not, the place is not known, unless it is the last one."""
        said: dict[int, Token] = {}
        gaps: set[int] = set()
        last = -1
        for at, proposal in enumerate(proposals):
            if proposal is not None:
                last = proposal.start
                said[last] = proposal.tokens[0]
            elif at < len(proposals) - 1:
                gaps.add(last)
        return cls(said, sorted({*said, len(answer)}), gaps)

    def after(self, at: int) -> int | None:
        """Where the token that starts at `at` ends; None where that is not known, and for the end of sequence."""
        following = bisect_right(self.own, at)
        return None if at in self.gaps or following == len(self.own) else self.own[following]


def _units(answer: bytes, mine: _Said, unit: Unit, *, ends: bool) -> tuple[list[list[_Part]], int]:
    """The reference in the draft's own tokens, in units; and at how many places it is not known what they are."""
    units: list[list[_Part]] = []
    unknown = int(mine.own[0] > 0 or -1 in mine.gaps)  # what stands before the first boundary
    begun = False
    for start in mine.own if ends else mine.own[:-1]:
        said, after = mine.said.get(start), mine.after(start)
        is_end = start == mine.own[-1]
        if said is None or (after is None and not is_end):
            unknown += 1
            begun = False
            continue
        token = Token(b"", None, end=True) if is_end else Token(answer[start:after], None)
        if begun and not starts_unit(unit, [part.token for part in units[-1]], token):
            units[-1].append(_Part(start, token, said))
        else:
            units.append([_Part(start, token, said)])
        begun = True
    return units, unknown


def _drafted(parts: Sequence[_Part], first: int, unit: Unit) -> list[Token]:
    """What the draft would write in a unit from its token `first` on: the reference, and then what is none of it.

    That may be the beginning of another unit, such as the end of sequence: then it is judged from there.
    """
    tokens: list[Token] = []
    for at in range(first, len(parts)):
        said = parts[at].said
        if tokens and starts_unit(unit, [part.token for part in parts[:at]], said):
            break
        tokens.append(said)
        if not parts[at].right:
            break
    return tokens


def _question(parts: Sequence[_Part], at: int, unit: Unit) -> Question:
    tokens = _drafted(parts, at, unit)
    return Question(parts[at].start, tuple(token.data for token in tokens), word=unit == "word")


def _text(tokens: Sequence[Token]) -> str:
    return readable(b"".join(token.data for token in tokens))
