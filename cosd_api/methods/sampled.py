"""Sampled speculative decoding: a draft's tokens are kept at random so that the assistant's distribution is preserved.

::

    1   the draft writes some tokens ahead, either drawn (x~_i ~ p) or its most probable tokens     `_drafted`
    2   the assistant lists its distribution q at each place                                        `_heard`
    3   x~_i is kept with probability min(1, q(x~_i) / p(x~_i)); p is 1 for a greedy token          `_kept`
    4   if x~_i is not kept, it is replaced by a token drawn from the normalised positive part
        of q - p, and the draft continues after that token                                          `_rest`
    5   if all tokens are kept, the assistant draws one more token                                  `write`

So each token is distributed according to q, whatever the draft is (Leviathan et al., ICML 2023). This holds exactly
only if the lists are complete. Lists are finite, and unlisted tokens are treated as having probability 0, so the
distribution of a token differs from q by at most t + d in total variation. In this bound, t is the probability that the
assistant's list leaves out, and d is the largest probability that the draft can give to tokens that only the assistant
lists. If the assistant lists no alternatives, for example because a character consists of several tokens, the
assistant's server draws the token, exactly according to q.

With `test="cosd"`, both models write their most probable tokens, and x^ replaces x~ if and only if p(x~) / q(x^) < u,
for a number u drawn from [0, 1). This is the test as it appears in the CoSD paper. The resulting texts follow neither
model's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from cosd_api.decoding.commands import DRAFT, Contender, DecidedSegment
from cosd_api.decoding.model import Lost, Model
from cosd_api.decoding.passage import Passage, numbered
from cosd_api.decoding.tokenwise import TokenVerdict, TokenwiseAnswer
from cosd_api.methods.gated_mixture import AHEAD
from cosd_api.methods.lists import Key, is_joined, key_of, probs_of
from cosd_api.methods.mean import inverse
from cosd_providers.contract import Question, Token

Test = Literal["ratio", "cosd"]
"""The test of a draft token: `"ratio"` preserves the assistant's distribution; `"cosd"` is the CoSD paper's test."""

_NEGLIGIBLE = 1e-6


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The verdict on one draft token, which is kept if `other` is None, and otherwise replaced by `other`."""

    other: Token | None
    reason: str


class SampledDraft:
    """Writes one answer by sampled speculative decoding.

    Args:
        answer: the answer, which is written.
        models: the draft and the assistant.
        drawn: whether the draft draws its tokens.
        test: the test of a draft token.
        listed: the number of tokens to list at each place.
    """

    def __init__(
        self, answer: TokenwiseAnswer, models: Sequence[Model], *, drawn: bool, test: Test, listed: int
    ) -> None:
        self._answer = answer
        self._draft, self._assistant = models
        self._drawn = drawn
        self._test = test
        self._listed = listed
        self._left_out = 0.0

    async def write(self) -> None:
        """Write the answer."""
        answer, before = self._answer, None
        try:
            while True:
                before = passage = await self._drafted(before)
                heard = await self._heard(passage)
                for at, token in numbered(passage.tokens, len(answer.text)):
                    if not await self._write_token(token, heard, at, passage.number):
                        before = None
                        break
                else:
                    answer.end_if_stuck(passage)
                    if self._test == "ratio" and not await self._drawn_by_assistant("bonus", None):
                        before = None
        finally:
            if self._left_out > _NEGLIGIBLE:
                words = f"the lists leave out probabilities that sum to {self._left_out:.2g} over this answer"
                answer.warn(
                    f"{words}: the mean of this sum over answers bounds how far they are from the assistant's own "
                    "distribution (in total variation)"
                )

    async def _drafted(self, before: Passage | None) -> Passage:
        """Line 1: let the draft write some tokens ahead."""
        answer = self._answer
        return await self._draft.write(
            min(answer.pace.draft_length or AHEAD, answer.left),
            listed=self._listed if self._drawn else 0,
            after=before,
            draw=("draft", len(answer.text)) if self._drawn else None,
        )

    async def _heard(self, passage: Passage) -> dict[int, Token]:
        """Line 2: return the assistant's token and its alternatives at each place for which there is an answer."""
        found: Sequence[Token | None] = ()
        with suppress(Lost):
            found = await self._assistant.choices(passage, listed=self._listed if self._test == "ratio" else 0)
        places = numbered(passage.tokens, len(passage.before))
        return {at: one for (at, _), one in zip(places, found, strict=False) if one is not None}

    async def _write_token(self, token: Token, heard: Mapping[int, Token], at: int, number: int) -> bool:
        """Lines 3 and 4: write the draft's token or another token; return True if the draft's token is kept."""
        answer = self._answer
        if not self._assistant.alive:
            self._put(token, _Verdict(None, "kept: the assistant could not be heard"), number)
            return True
        theirs = heard.get(at)
        verdict: _Verdict | None
        if self._test == "cosd":
            answer.unanswered += theirs is None
            verdict = self._tested(token, theirs, at)
        elif theirs is None or is_joined(theirs):
            return await self._drawn_by_assistant("draw", token)
        else:
            p = await self._p(token, at)
            verdict = self._kept(token, p, theirs, at) or self._rest(token, p, theirs, at)
            if verdict is None:
                return await self._drawn_by_assistant("draw", token)
        self._put(token, verdict, number)
        return verdict.other is None

    def _kept(self, token: Token, p: Mapping[Key, float], theirs: Token, at: int) -> _Verdict | None:
        """Line 3: keep the draft's token with probability min(1, q / p); return None if the token is rejected."""
        q = probs_of(theirs)
        self._left_out += _left_out(p, q)
        chance = self._answer.chance.number("keep", at)
        mine, other = p.get(key_of(token), 0.0), q.get(key_of(token), 0.0)
        if (self._drawn and is_joined(token)) or chance * mine >= other:
            return None
        return _Verdict(None, f"kept: {chance:.3g} < {other:.3g} / {mine:.3g}")

    def _rest(self, token: Token, p: Mapping[Key, float], theirs: Token, at: int) -> _Verdict | None:
        """Line 4: draw a token from the positive part of q - p; return None if q exceeds p for no listed token."""
        q, chance = probs_of(theirs), self._answer.chance.number("keep", at)
        rest = {key: prob - p.get(key, 0.0) for key, prob in sorted(q.items()) if prob > p.get(key, 0.0)}
        point = self._answer.chance.number("draw", at) * math.fsum(rest.values())
        chosen: Key | None = None
        for key, prob in rest.items():
            chosen, point = key, point - prob
            if point < 0:
                break
        if chosen is None:
            return None
        other = next(one for one in (theirs, *theirs.alternatives) if key_of(one) == chosen)
        rejected = f"rejected: {chance:.3g} >= {q.get(key_of(token), 0.0):.3g} / {p.get(key_of(token), 0.0):.3g}"
        words = f"{rejected}; drawn from what the {self._assistant.name} finds more probable"
        return _Verdict(replace(other, alternatives=()), words)

    async def _p(self, token: Token, at: int) -> dict[Key, float]:
        """Return the draft's distribution at the place of its token. A greedy draft's token has probability 1.

        A token that was joined from several tokens has no alternatives, so the draft is asked for its distribution.
        """
        if not self._drawn:
            return {key_of(token): 1.0}
        if not is_joined(token):
            return probs_of(token)
        text, questions = self._answer.text + token.data, [Question(at, ())]
        [proposal] = await self._draft.propose(text, questions, listed=self._listed)
        found = None if proposal is None else proposal.tokens[0]
        return {} if found is None or is_joined(found) else probs_of(found)

    def _tested(self, token: Token, theirs: Token | None, at: int) -> _Verdict:
        """Apply the test of the CoSD paper to one draft token."""
        if theirs is None or key_of(theirs) == key_of(token):
            return _Verdict(None, "kept: no answer" if theirs is None else "both agree")
        p, q, u = token.prob, theirs.prob, self._answer.chance.number("keep", at)
        if p is None or q is None:
            return _Verdict(None, "kept: a probability is not known")
        replaces = p < u * q
        reason = f"{p:.3g} / {q:.3g} {'<' if replaces else '>='} {u:.3g}"
        return _Verdict(replace(theirs, alternatives=()) if replaces else None, reason)

    async def _drawn_by_assistant(self, name: str, token: Token | None) -> bool:
        """Let the assistant draw a token by itself, which replaces the draft's `token` if one is given.

        Returns:
            True if the draft can continue from its own tokens, because the assistant drew the same token or no token.
        """
        answer, at, passage = self._answer, len(self._answer.text), None
        with suppress(Lost):
            passage = await self._assistant.write(1, until=lambda _: False, draw=(name, at))
        if passage is None or not passage.tokens:
            if token is not None:
                answer.unanswered += passage is not None
                self._put(token, _Verdict(None, "kept: the assistant could not be heard"), 0)
            return True
        other = passage.tokens[0]
        if token is not None and key_of(other) == key_of(token):
            self._put(token, _Verdict(None, "kept: the assistant drew the same"), passage.number)
            return True
        self._put(token, _Verdict(other, f"drawn by {self._assistant.name}"), passage.number)
        return False

    def _put(self, token: Token | None, verdict: _Verdict, number: int) -> None:
        """Write the token that the verdict chooses: its `other` if that is given, otherwise the draft's `token`."""
        mine = [] if token is None else [Contender((DRAFT,), token.data, token.end, (_inverse(token), None))]
        theirs = verdict.other
        other = [] if theirs is None else [Contender((0,), theirs.data, theirs.end, (None, _inverse(theirs)))]
        segment = DecidedSegment((*mine, *other), len(mine) + len(other) - 1, verdict.reason)
        heard = self._assistant.alive
        judged = TokenVerdict(
            replaced=token if theirs is not None else None, verified=heard, asked=heard, reason=verdict.reason
        )
        written = theirs or token
        assert written is not None
        model = self._assistant if theirs else self._draft
        self._answer.put(written, model, judged, number=number, segment=segment)


def _inverse(token: Token) -> float | None:
    """Return 1 / probability, as segments record it; None if the probability is unknown."""
    return None if token.prob is None else inverse(token.prob)


def _left_out(p: Mapping[Key, float], q: Mapping[Key, float]) -> float:
    """Return the largest total variation distance that the finite length of both lists can cause at one place."""
    tail, rest = (max(0.0, 1 - math.fsum(probs.values())) for probs in (q, p))
    return tail + min(rest, math.fsum(min(prob, rest) for key, prob in q.items() if key not in p))
