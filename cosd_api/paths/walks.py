"""Pure functions that find the first difference between a draft and an assistant in a unit.

Both answers and training use these functions. An assistant agrees with a unit (`PathUnit`) if, at each place in
the unit, the assistant's most probable token is the next token of its own encoding of the draft's text. An assistant
that accepts only text agrees if the text that it writes from the unit's start spells the draft's text
(`spelled`). Otherwise the two models differ at the first place where the assistant would write a different
token. The verifier compares these probabilities::

    q   the lowest probability among the assistant's choices from the unit's start to this place
    p   the lowest probability among the draft tokens of the unit that begin before the differing token ends

If the draft's text is kept at a difference, the next unit begins at the first common boundary after the differing
token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cosd_api.paths.encoding import DraftPath
from cosd_api.paths.text_only import spelled
from cosd_api.paths.units import PathUnit
from cosd_providers.contract import Token

AskedPlace = tuple[int, tuple[int, ...]]
"""A place: its byte offset in the answer, and the assistant's ids before it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference in a unit: a place at which an assistant would not write what the draft wrote.

    Attributes:
        at: byte offset of the place in the answer.
        end: byte offset of the end of the difference. The draft tokens of the unit that begin before this offset are
            kept or replaced together.
        ids: the assistant's ids before the place; None if the assistant accepts only text.
        walked: the assistant's tokens from the unit's start up to and including the differing token.
        own: the differing token, followed by as much of the assistant's continuation as is known.
    """

    at: int
    end: int
    ids: tuple[int, ...] | None
    walked: Sequence[Token]
    own: Sequence[Token]

    @property
    def theirs(self) -> Token:
        """The token that the assistant would write."""
        return self.own[0]


@dataclass(frozen=True, slots=True)
class Walk:
    """The result of comparing a unit place by place, as far as the assistant's answers are known.

    Attributes:
        choices: the assistant's choice at each answered place, in order. If the assistant accepts only text: the tokens
            that it wrote in the unit.
        difference: the first difference, at the last answered place; None if there is none so far.
        missing: the first place for which there is no answer yet, if any.
        silent: whether the comparison ended at a place for which the assistant could not answer.
        tied: whether the assistant agrees at any of the places only because of a tie.
    """

    choices: tuple[Token, ...]
    difference: Difference | None = None
    missing: AskedPlace | None = None
    silent: bool = False
    tied: bool = False


def asked_places(unit: PathUnit, bound: int) -> list[AskedPlace]:
    """The places of a unit before byte `bound`; empty if the unit is kept without a verdict."""
    encoding = unit.encoding
    return [] if encoding is None else [(at, encoding.ids[:count]) for at, count in unit.places(bound)]


def walk(
    draft: DraftPath, unit: PathUnit, bound: int, answers: Mapping[tuple[int, ...], Token | None], tie: float
) -> Walk:
    """Compare an assistant's choices with its own encoding of the draft's text, place by place.

    Args:
        draft: the draft's path.
        unit: the unit.
        bound: byte offset; only places before this offset are judged.
        answers: the assistant's most probable token at each answered place, by the ids before the place; None if the
            assistant could not answer.
        tie: largest difference of log probabilities at which the assistant's two most probable ids count as equal.
    """
    choices, tied = list[Token](), False
    for at, ids in asked_places(unit, bound):
        if ids not in answers:
            return Walk(tuple(choices), missing=(at, ids), tied=tied)
        theirs = answers[ids]
        if theirs is None:
            return Walk(tuple(choices), silent=True, tied=tied)
        choices.append(theirs)
        assert unit.encoding is not None  # a unit that has places has an encoding
        own = None if draft.tokens[unit.first].end else unit.encoding.ids[len(ids)]
        if is_own(theirs, own):
            continue
        if ties(theirs, own, tie):
            tied = True
            continue
        end = at if own is None else unit.encoding.offset(len(ids) + 1)
        return Walk(tuple(choices), Difference(at, end, ids, tuple(choices), (theirs,)), tied=tied)
    return Walk(tuple(choices), tied=tied)


def walk_text(draft: DraftPath, unit: PathUnit, bound: int, tokens: Sequence[Token]) -> Walk | None:
    """Compare the draft's text with the text that an assistant writes from the start of the unit.

    Args:
        draft: the draft's path.
        unit: the unit.
        bound: byte offset before which a difference counts. A difference at the draft's end of sequence always counts.
        tokens: the assistant's answer to `text_paths.unit_question`; empty if it could not answer.

    Returns:
        None if the draft has not written far enough.
    """
    known = spelled(draft, unit, tokens)
    if known is None:
        return None
    starts = [*accumulate((len(token.data) for token in tokens), initial=unit.start)]
    if known < len(tokens) and (starts[known] < bound or unit.start == unit.end):
        at, choices = starts[known], tuple(tokens[: known + 1])
        reached = min(max(starts[known + 1], at + 1), unit.end)
        end = draft.offset(begun_before(draft, unit.first, reached))  # a record contains only whole tokens
        return Walk(choices, Difference(at, end, None, choices, tokens[known:]))
    if not tokens or (known == len(tokens) and starts[-1] < unit.end):
        return Walk((), silent=True)
    inside = [token for token, start in zip(tokens[:known], starts, strict=False) if start < unit.end]
    return Walk(tuple(inside or tokens[:1]))


def is_own(theirs: Token, own: int | None) -> bool:
    """Test whether a model's choice is the token with the id `own`; None stands for the end of sequence."""
    return theirs.end if own is None else theirs.id == own


def ties(theirs: Token, own: int | None, tie: float) -> bool:
    """Test whether a model's second choice is the token `own`, with a log probability within `tie` of the first."""
    second = next(iter(theirs.alternatives), None)
    if second is None or not (theirs.prob and second.prob):
        return False
    if math.log(theirs.prob) - math.log(second.prob) > tie:
        return False
    return any(is_own(one, own) and one.prob == second.prob for one in theirs.alternatives)


def begun_before(draft: DraftPath, first: int, end: int) -> int:
    """Index after the last draft token that begins before byte `end`; always greater than `first`."""
    tokens = range(first, len(draft.tokens))
    return next((at for at in tokens if draft.ends[at] >= end), len(draft.tokens) - 1) + 1


def next_start(draft: DraftPath, unit: PathUnit, end: int) -> int:
    """Index of the draft token at which the next unit begins, after a difference that was kept and ends at byte `end`.

    The next unit begins at the first common boundary at or after `end` in this unit, or else at the end of the unit.
    """
    if unit.encoding is None:
        return unit.last
    for at in range(unit.first, unit.last):
        whole = draft.ends[at] >= max(end, unit.start + 1) and draft.is_whole(at + 1)
        if whole and unit.encoding.count(draft.offset(at + 1)) is not None:
            return at + 1
    return unit.last
