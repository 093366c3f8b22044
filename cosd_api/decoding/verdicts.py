"""The verifier of one answer, with what it has to know about the answer's tokens."""

from __future__ import annotations

import math

from cosd_api.alignment import Decision, most_probable
from cosd_api.decoding.answer import AnswerPath
from cosd_api.verification import Place, Verifier, coin_of, decides_by_place, digest_of, needs_of, tie_of, verifier_at
from cosd_providers.contract import Token


class Verdicts:
    """The decisions of a verifier about the tokens of one answer.

    Args:
        verifier: the rule, a tree, or another verifier.
        answer: the answer.

    Attributes:
        needs: the data that the verifier needs.
        tie: largest difference of log probabilities that counts as a tie.
    """

    def __init__(self, verifier: Verifier, answer: AnswerPath) -> None:
        self.needs = needs_of(verifier)
        self.tie = tie_of(verifier, answer.job.drafts.tie)
        self._verifier, self._answer = verifier, answer
        self._by_place = decides_by_place(verifier)
        self._prompt = digest_of(answer.job.turns[0].prompt)
        self._skip = answer.job.drafts.skip

    @property
    def ever(self) -> bool:
        """Test whether an assistant has to be asked about any token at all."""
        return not self._skip or self._by_place or self._verifier.contestable(0.0)

    def contestable(self, at: int) -> bool:
        """Test whether an assistant's answer could replace token `at`."""
        token = self._answer.tokens[at]
        if token.prob is None or self._answer.marks[at].looked_up:  # of a part of a character, which has an id
            return token.id is not None and not token.end and (self._by_place or self._verifier.contestable(0.0))
        here = self._verifier
        if self._by_place:
            here = verifier_at(here, Place(self._prompt, self._answer.offset(at), token=token))
        return here.contestable(token.prob)

    def asks(self, at: int) -> bool:
        """Test whether an assistant has to be asked about token `at`."""
        return not self._skip or self.contestable(at)

    def replaces(self, at: int, theirs: Token, decision: Decision) -> bool:
        """Decide whether an assistant's token replaces token `at` (equations 5 and 6); record the data in `decision`.

        A decision that needs an unknown probability keeps the draft's token.
        """
        here, p, q = self._at(at, theirs, decision), decision.p, decision.q
        if decision.agreed or p is None or (q is None and self.needs.q):
            return False
        return here.replaces(p, math.nan if q is None else q)

    def _at(self, at: int, theirs: Token, decision: Decision) -> Verifier:
        if not (self._by_place or self.needs.alternatives):
            return self._verifier
        mine = self._answer.tokens[at]
        known = most_probable(mine, theirs) if self.needs.alternatives else None
        here = verifier_at(self._verifier, Place(self._prompt, self._answer.offset(at), draft_q=known, token=mine))
        decision.coin, decision.draft_q = coin_of(here), known
        return here
