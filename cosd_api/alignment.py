"""Pure functions that judge one draft token by Algorithm 1.

A verdict depends only on the text before the token, on the token itself, and on the assistant's own token at the same
place. Therefore neither the timing and batching of requests nor the draft length changes the fused text. Tokens are
compared by id, or by text if their ids are unknown. Equation (3) of the paper covers equal tokens, and equation (4)
covers different tokens.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cosd_providers.contract import Token
from cosd_providers.text import join

Unit = Literal["token", "word", "literal"]
"""The unit in which a draft is judged; `Fusion` explains the values."""
LONGEST = 8
"""Maximum number of tokens in a unit, and in a replacement."""
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
"""Beginnings of the Unicode names of characters in scripts that are written without spaces."""


@dataclass(slots=True)
class Decision:
    """The decision about one or more tokens of the draft, based on one assistant's answer.

    Attributes:
        assistant: index of the assistant.
        text: the assistant's text at this place, as bytes.
        p: the draft's probability for the least probable token of its own text; None if unknown.
        q: the assistant's probability for the least probable token of its own text; None if unknown.
        agreed: whether both models wrote the same text, or their tokens tie (`tied`).
        fired: whether the assistant's text differs from the draft's and the verifier chose the assistant's text.
        draft: the draft's text at this place, as bytes.
        coin: the number on which the verifier based its decision, if it uses one. `coin` and `draft_q` are kept only
            for the record.
        draft_q: the assistant's probability for the draft's text, or an upper bound on it, if the verifier needs it.
        ask: number of the question that the assistant answered.
        strategy: the strategy with which the assistant was asked, if its provider reports it.
        tied: whether the models agree only because the draft's token is the assistant's second choice and about as
            probable as the assistant's first choice.
        count: number of draft tokens to which the decision applies.
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
        assistant: index of the assistant, which the decision records.
        needs_q: whether `replaces` uses `q`; if so, an assistant's token whose `q` is unknown never replaces the
            draft's token.
        tie: largest difference of log probabilities at which an assistant's two most probable ids count as equal.
    """
    p, q, agreed = mine.prob, theirs.prob, same(mine, theirs)
    tied = not agreed and ties(mine, theirs, tie)
    # Tokens that agree may differ in bytes: an id that ends one model's answer may be text in the other model, and
    # servers show parts of characters in different ways.
    data = mine.data if agreed else theirs.data
    agreed = agreed or tied
    decision = Decision(assistant, data, p, q, agreed, False, mine.data, tied=tied)
    decision.fired = not agreed and p is not None and not (q is None and needs_q) and bool(replaces(decision))
    return decision


def same(mine: Token, theirs: Token) -> bool:
    """Test whether two tokens are the same: by id if both ids are known, else by text. Ends of sequence are equal."""
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
    """The probability of a span of tokens, which is the probability of its least probable token."""
    return join(list(tokens)).prob


def most_probable(mine: Token, theirs: Token) -> float | None:
    """A model's probability for any token at a place, or an upper bound on this probability.

    An unlisted token has at most the probability that remains after all listed tokens. It is also no more probable than
    any listed token, except for tokens that servers never list, such as parts of characters or an unreported end of
    sequence. A list that is shorter than requested may lack such tokens.

    Args:
        mine: the token.
        theirs: the model's own most probable token at the same place, with its alternatives.

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
