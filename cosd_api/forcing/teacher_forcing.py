"""Teacher forcing of two models that are sent text, token by token.

The reference is cut into the draft's tokens. At the place of each token, the draft's most probable token and the
assistant's are compared by their text, as in a fusion of models that share a tokenizer and are sent text (equations 3,
4 and 7 of the paper).

One scoring request to each model returns its choices at every token boundary of its own encoding of the reference. If a
token of the draft ends inside a token of the assistant, the assistant's choice at that place is `missing`, and must be
asked for separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cosd_api.alignment import same
from cosd_api.forcing.reading import TextReading
from cosd_api.forcing.samples import Label, Sample
from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.text import readable

__all__ = ["TeacherForcing"]


class TeacherForcing:
    """Teacher forcing of two models along a reference answer (section 3.2 and equation 7 of the paper).

    Args:
        draft: the draft's reading of the reference.
        assistant: the assistant's reading of the reference.
        ends: whether the answer must end after the reference. If False, the place after the reference is not judged.

    Attributes:
        missing: questions that the assistant's reading does not answer; pass the answers to `add_answers`.
    """

    def __init__(self, draft: TextReading, assistant: TextReading, *, ends: bool = True) -> None:
        self._draft = draft
        self._ends = ends
        self._assistant = dict(zip(assistant.starts, assistant.choices, strict=True))
        self.missing = [
            Question(start, (choice.data,))
            for start, _, choice in self._places()
            if choice is not None and self._assistant.get(start) is None
        ]

    def add_answers(self, proposals: Sequence[Proposal | None]) -> None:
        """Add the assistant's answers to the questions in `missing`, in the same order."""
        for asked, answer in zip(self.missing, proposals, strict=True):
            self._assistant[asked.start] = None if answer is None else answer.tokens[0]

    def samples(self) -> tuple[tuple[Sample, ...], int]:
        """Return samples of all places that can be judged, in text order, and the number of all other places."""
        found = [_sample(start, token, choice, self._assistant.get(start)) for start, token, choice in self._places()]
        known = tuple([one for one in found if one is not None])
        return known, len(found) - len(known)

    def _places(self) -> Iterator[tuple[int, Token, Token | None]]:
        """Yield the byte offset, the reference's token and the draft's choice for each place that is to be judged."""
        read = self._draft
        for start, token, choice in zip(read.starts, read.tokens, read.choices, strict=True):
            if self._ends or not token.end:
                yield start, token, choice


def _sample(start: int, token: Token, mine: Token | None, theirs: Token | None) -> Sample | None:
    """Create the sample of a place; None if one of the choices or its probability is unknown."""
    if mine is None or theirs is None or mine.prob is None or theirs.prob is None:
        return None
    agreed = same(mine, theirs)
    label: Label | None = 0 if same(mine, token) else 1 if same(theirs, token) else None
    texts = [readable(one.data) for one in (mine, theirs, token)]
    return Sample(mine.prob, theirs.prob, label, agreed, start, *texts)
