"""A recorded answer, judged again: from what both models said to the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from cosd_api.errors import TraceError
from cosd_api.records import FusedToken, TokenDecision
from cosd_api.verification import Verifier, needs_q


def replayed(tokens: Sequence[FusedToken], verifier: Verifier, assistants: Sequence[str]) -> bytes:
    """The text that a verifier makes of what was recorded, unit by unit (Algorithm 1, lines 9 to 14).

    Args:
        tokens: of the whole answer.
        verifier: judges each decision again, by the probabilities that stand there.
        assistants: their names, in the order given.

    Returns:
        The answer's bytes.

    Raises:
        TraceError: the verifier decides otherwise than was recorded, or the record does not hold together.
    """
    text = b""
    numbered = enumerate(tokens, 1)
    for _, members in groupby(numbered, key=lambda one: one[1].unit):
        unit = list(members)
        firing = [decision for number, token in unit for decision in _fired(token, number, verifier)]
        replacements = [(number, token) for number, token in unit if token.replaced is not None]
        winner = max(firing, key=lambda one: (one.prob or 0.0, -assistants.index(one.assistant)), default=None)
        cut = unit[-1][0] == len(tokens)  # a stop string may have taken the replacement away
        if winner is None and replacements:
            number, token = replacements[0]
            raise TraceError(f"token {number} ({token.text!r}) replaced {token.replaced!r}, and no decision says so")
        if winner is not None and not replacements and not cut:
            words = f"{winner.draft_text!r} by {winner.text!r}"
            raise TraceError(f"a decision replaced {words} before token {unit[-1][0] + 1}, and the answer has neither")
        if winner is not None and replacements:
            _check_word(winner, *replacements[0])
        text += b"".join(token.data for _, token in unit)
    return text


def _fired(token: FusedToken, number: int, verifier: Verifier) -> list[TokenDecision]:
    """The decisions at a token that fire, each judged again."""
    for decision in token.decisions:
        p, q = decision.draft_prob, decision.prob
        fires = False
        if not decision.agreed and p is not None and not (q is None and needs_q(verifier)):
            fires = verifier.fires(p, math.nan if q is None else q)
        if fires != decision.fired:
            words = verifier.words(p or 0.0, math.nan if q is None else q)
            was = "replaced" if decision.fired else "kept"
            raise TraceError(
                f"token {number} ({token.text!r}): {decision.draft_text!r} was {was}, and the verifier says {words}"
            )
    return [decision for decision in token.decisions if decision.fired]


def _check_word(winner: TokenDecision, number: int, token: FusedToken) -> None:
    """Sees whether the word that stands there is the one that has won."""
    if token.source != winner.assistant:
        words = f"is the word of {token.source}, and {winner.assistant} was surer"
        raise TraceError(f"token {number} ({token.text!r}) {words}")
    if not (token.text.startswith(winner.text) or winner.text.startswith(token.text)):
        raise TraceError(f"token {number} is {token.text!r}, and the decision put {winner.text!r} there")
