"""The judgement of one token by Algorithm 1, in pure functions.

A verdict depends only on the text before the token, the token, and the assistant's own token there. So skipping,
batching, concurrency and the draft length do not change the fused text. Tokens are compared by id, or by text if ids
are not known; they are equal in equation (3) of the paper and differ in equation (4).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cosd_providers.contract import Token
from cosd_providers.text import join

Unit = Literal["token", "word"]
LONGEST = 8
"""The highest number of tokens in a unit, and in a replacement."""
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
"""Scripts that are written without spaces, as the beginnings of their characters' Unicode names."""


@dataclass(slots=True)
class Decision:
    """The decision about one or more tokens of the draft, based on one assistant's answer.

    Attributes:
        assistant: index of the assistant.
        text: the assistant's text there, as bytes.
        p: the draft's probability of the least probable token of its text; None if unknown.
        q: the assistant's probability of the least probable token of its text; None if unknown.
        agreed: whether both wrote the same text, or tie (`tied`).
        fired: whether they differ and the verifier chose the assistant.
        draft: the draft's text there, as bytes.
        coin: the number by which the verifier decided, if it uses one; only recorded, like `draft_q`.
        draft_q: the assistant's probability of the draft's text, or an upper bound of it, if the verifier needs it.
        ask: number of the question that brought the answer.
        strategy: the way in which the endpoint was asked, if its provider reports it.
        tied: whether they agree because the draft's token is the assistant's second choice, as probable as its first.
        count: number of draft tokens.
    """

    assistant: int
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
    count: int = 1


def is_unspaced(character: str) -> bool:
    """Test whether a character belongs to a script that is written without spaces between words."""
    return character > "\u0e00" and unicodedata.name(character, "").startswith(WRITTEN_WITHOUT_SPACES)


def judge(
    mine: Token,
    theirs: Token,
    replaces: Callable[[Decision], bool],
    *,
    assistant: int = 0,
    needs_q: bool = True,
    tie: float = 0.0,
) -> Decision:
    """Judge a draft token against one assistant's own token at the same place (equations 3 to 6).

    Args:
        mine: the draft's token.
        theirs: the assistant's token.
        replaces: the verifier's decision; called if the tokens differ and the probabilities that it needs are known.
        assistant: index of the assistant, for the decision.
        needs_q: whether `replaces` uses `q`; if so, a token of unknown `q` never replaces.
        tie: largest difference of log probabilities at which an assistant's two most probable ids count as equal.
    """
    p, q, agreed = mine.prob, theirs.prob, same(mine, theirs)
    tied = not agreed and ties(mine, theirs, tie)
    # Agreeing tokens may differ in bytes: an id may be the end of one model and text of the other, and servers show
    # parts of characters differently.
    data = mine.data if agreed else theirs.data
    agreed = agreed or tied
    decision = Decision(assistant, data, p, q, agreed, False, mine.data, tied=tied)
    decision.fired = not agreed and p is not None and not (q is None and needs_q) and bool(replaces(decision))
    return decision


def same(mine: Token, theirs: Token) -> bool:
    """Test whether two tokens are the same: by id if both ids are known (any two ends are the same), else by text."""
    if mine.id is None or theirs.id is None:
        return mine.data == theirs.data and mine.end == theirs.end
    return mine.id == theirs.id or (mine.end and theirs.end)


def ties(mine: Token, theirs: Token, tie: float) -> bool:
    """Test whether the draft's token is a model's second choice, with a log probability within `tie` of the first."""
    second = next(iter(theirs.alternatives), None)
    if mine.id is None or second is None or not (theirs.prob and second.prob):
        return False
    if math.log(theirs.prob) - math.log(second.prob) > tie:
        return False
    return any(one.id == mine.id and one.prob == second.prob for one in theirs.alternatives)


def least(tokens: Sequence[Token]) -> float | None:
    """The probability of a span, which is that of its least probable token."""
    return join(list(tokens)).prob


def most_probable(mine: Token, theirs: Token) -> float | None:
    """The probability that a model gives a token in place of its own, or an upper bound of it.

    An unlisted token has at most the probability mass that the listed tokens leave over. It is also no more probable
    than any listed token, unless it is of a kind that no list contains, such as a part of a character or an unreported
    end. If such tokens were among the most probable, a list may be shorter than requested.

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
