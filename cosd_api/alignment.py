"""Judging one unit: pure functions, no I/O, no state.

The draft's tokens are judged in units: consecutive tokens that are judged together. A verdict depends on nothing
but the text before the unit, the unit's own tokens, and what the assistant would write from the unit's start. That
is why skipping, batching, concurrency and any draft length leave the fused text as it is.

`unit="token"` is Algorithm 1 to the letter: the next tokens are compared, by text as in equation (3) of the paper, and
equation (4) is that they differ. `unit="word"`, for different tokenizers, is this library's own: nearly every tokenizer
splits at words, so both models start from text that they would themselves have cut at that point.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cosd_providers.contract import Token
from cosd_providers.text import continues_word, first_character, join, last_character

Unit = Literal["token", "word"]
LONGEST = 8
"""Tokens in a unit, and in a replacement, at most."""
WRITTEN_WITHOUT_SPACES = (
    "CJK UNIFIED",
    "CJK COMPATIBILITY IDEOGRAPH",
    "HIRAGANA",
    "KATAKANA",
    "HALFWIDTH KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
)
"""Scripts written without spaces, by the beginning of their characters' Unicode names."""


@dataclass(slots=True)
class Decision:
    """One span of the draft that an assistant was heard about.

    Attributes:
        assistant: index of the assistant.
        first: index, in the unit, of the span's first draft token.
        last: index one past its last.
        text: what the assistant wrote there, as bytes.
        p: the draft's probability of its least probable token there; None where unknown.
        q: the assistant's, likewise.
        agreed: both wrote the same.
        fired: they differ and the verifier chose the assistant.
        draft: the draft's text there.
        coin: a number of its own by which the verifier decided, if it has one; this and the next are for the record.
        draft_q: the assistant's probability of the draft's text, or the most that it can be, if the verifier wants it.
        ask: number of the question that brought the answer.
        strategy: the way in which the endpoint was asked, if its provider reports it.
        tied: they agree because the draft's token is the assistant's second choice, as probable as its first.
    """

    assistant: int
    first: int
    last: int
    text: bytes
    p: float | None
    q: float | None
    agreed: bool
    fired: bool
    draft: bytes
    coin: float | None = None
    draft_q: float | None = None
    ask: int | None = None
    strategy: str | None = None
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """Decisions from one proposal, and one of three ends.

    Attributes:
        decisions: in the order of the text.
        replacement: the assistant's word, to be put in place of everything from the last decision's `first` on.
        again: index of the unit's token from which the assistant must be asked again: after a disagreement that
            stands, or where the proposal is too short.

    With neither, the unit is judged and stays as drafted.
    """

    decisions: tuple[Decision, ...]
    replacement: tuple[Token, ...] = ()
    again: int | None = None


def starts_unit(unit: Unit, before: Sequence[Token], token: Token) -> bool:
    """Decide if `token` starts a new unit after the tokens of the unit `before`, which is not empty."""
    if unit == "token" or token.end or len(before) >= LONGEST:
        return True
    first = first_character(token.data)
    if first.isspace():
        return True
    last = before[-1].data
    # A space belongs to the word behind it, also where a tokenizer makes it a token of its own (most do before digits):
    # others would never cut between the two. White space is always the start of its unit.
    lone_space = len(before) == 1 and last.endswith(b" ") and last.isspace()
    if last_character(last).isspace() and not lone_space:
        return True
    return is_unspaced(first)


def is_unspaced(character: str) -> bool:
    """Test whether a character belongs to a script that is written without spaces between words."""
    return character > "\u0e00" and unicodedata.name(character, "").startswith(WRITTEN_WITHOUT_SPACES)


def judge(
    tokens: Sequence[Token],
    proposal: Sequence[Token],
    replaces: Callable[[Decision], bool],
    *,
    unit: Unit,
    first: int = 0,
    assistant: int = 0,
    needs_q: bool = True,
    tie: float = 0.0,
) -> Judgement:
    """Walk a unit's `tokens` from index `first` against what one assistant would write there (equations 3 to 6).

    Args:
        tokens: the unit's draft tokens, whole.
        proposal: the assistant's continuation of the text before `tokens[first]`, in tokens of whole characters.
        replaces: the verifier's decision on a span that differs, whose `p` is known.
        unit: `"token"` compares one token with one; `"word"` walks both by bytes.
        first: where the walk starts.
        assistant: its index, for the decisions.
        needs_q: whether `replaces` looks at `q`. If so, an unknown `q` never replaces.
        tie: difference of log probabilities within which an assistant's two most probable ids count as equal.
    """
    decisions: list[Decision] = []
    i = first  # tokens[begin:i] and proposal[a_begin:a] are what both wrote since the boundary
    a = 0
    while i < len(tokens):
        if a == len(proposal):
            return _ask_again(decisions, tokens, i + 1)
        begin, a_begin = i, a
        i, a, agreed = span(tokens, proposal, i, a, whole_tokens=unit == "token")
        if agreed is None and i < len(tokens):
            return _ask_again(decisions, tokens, i + 1)
        if agreed is None:
            break  # the unit ends inside the assistant's token: the next unit judges the rest
        p, q = least(tokens[begin:i]), least(proposal[a_begin:a])
        tied = not agreed and ties(tokens[begin], proposal[a_begin], tie)
        mine, theirs = _bytes(tokens[begin:i]), _bytes(proposal[a_begin:a])
        # One id may be the end of one model and a text of the other, and servers show parts of characters differently.
        theirs = mine if agreed else theirs
        agreed = agreed or tied
        decision = Decision(assistant, begin, i, theirs, p, q, agreed, False, mine, tied=tied)
        decision.fired = not agreed and p is not None and not (q is None and needs_q) and bool(replaces(decision))
        decisions.append(decision)
        if decision.fired:
            end = a if unit == "token" else _end_of_word(proposal, a_begin, a)
            return Judgement(tuple(decisions), replacement=tuple(proposal[a_begin:end]))
        if not agreed:
            return _ask_again(decisions, tokens, i)
    return Judgement(tuple(decisions))


def _ask_again(decisions: list[Decision], tokens: Sequence[Token], i: int) -> Judgement:
    """Ask again from `tokens[i]` on: the assistant continues the text before it."""
    return Judgement(tuple(decisions), again=i if i < len(tokens) else None)


def span(
    tokens: Sequence[Token], proposal: Sequence[Token], i: int, a: int, *, whole_tokens: bool
) -> tuple[int, int, bool | None]:
    """The next span: the ends (one past) in both, and whether they agree; None where one side ends before that."""
    mine, theirs = tokens[i], proposal[a]
    if whole_tokens:
        return i + 1, a + 1, same(mine, theirs)
    left, right = mine.data, theirs.data  # what of the two current tokens was not compared yet
    while True:
        if mine.end or theirs.end:
            return i + 1, a + 1, mine.end and theirs.end
        n = min(len(left), len(right))
        if left[:n] != right[:n]:
            return i + 1, a + 1, False
        left, right = left[n:], right[n:]
        if not left and not right:
            return i + 1, a + 1, True
        if not left:
            i += 1
            if i == len(tokens):
                return i, a, None
            mine = tokens[i]
            left = mine.data
        else:
            a += 1
            if a == len(proposal):
                return i, a, None
            theirs = proposal[a]
            right = theirs.data


def same(mine: Token, theirs: Token) -> bool:
    """The same token: equal ids or two ends, where ids are shown; else equal text."""
    if mine.id is None or theirs.id is None:
        return mine.data == theirs.data and mine.end == theirs.end
    return mine.id == theirs.id or (mine.end and theirs.end)


def ties(mine: Token, theirs: Token, tie: float) -> bool:
    """Test whether the draft's id is a model's second choice and its log probability within `tie` of the first."""
    second = next(iter(theirs.alternatives), None)
    if mine.id is None or second is None or not (theirs.prob and second.prob):
        return False
    if math.log(theirs.prob) - math.log(second.prob) > tie:
        return False
    return any(one.id == mine.id and one.prob == second.prob for one in theirs.alternatives)


def _end_of_word(proposal: Sequence[Token], begin: int, end: int) -> int:
    """The end of the replacement `proposal[begin:end]` with the tokens that complete its word."""
    while (
        end < len(proposal)
        and end - begin < LONGEST
        and not proposal[end].end
        and continues_word(proposal[end - 1].data, proposal[end])
    ):
        end += 1
    return end


def _bytes(tokens: Sequence[Token]) -> bytes:
    return b"".join(token.data for token in tokens)


def least(tokens: Sequence[Token]) -> float | None:
    """The probability of a span: that of its least probable token."""
    return join(list(tokens)).prob


def most_probable(mine: Token, theirs: Token) -> float | None:
    """The probability that a model gives a token in place of its own, or the most that it can be.

    Where the token is not listed, it has at most what the listed ones leave over. It is also at most as probable as
    each of a list, unless it may be what no list holds: parts of a character, or an end that is not reported. A list
    may be shorter than was wanted, where such tokens were among the most probable.

    Args:
        mine: the token.
        theirs: the model's own most probable token there, with its alternatives.

    Returns:
        None if the model's probability of its own token is unknown.
    """
    listed = [one for one in (theirs, *theirs.alternatives) if one.prob is not None]
    if theirs.prob is None:
        return None
    for one in listed:
        if same(mine, one):
            return one.prob
    rest = max(0.0, 1 - math.fsum(one.prob or 0.0 for one in listed))
    if not theirs.alternatives or (mine.id is None and (mine.end or not mine.data.isascii())):
        return rest
    return min(rest, *(one.prob or 0.0 for one in listed))
