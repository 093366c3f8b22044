"""Draws from the gated mixture, which is the distribution that Algorithm 1 of the paper decodes greedily.

::

    1   the draft model draws some tokens ahead: x_1, x_2, ... ~ M_p                              `_drafted`
    2   x~_i = argmax M_p and p_i = max M_p are read from the draft's list at each place          `_preferred`
    3   each assistant reports x^_i = argmax M_q and q_i = max M_q at contestable places          `_heard`
    4   the gate opens if x~_i != x^_i and the verifier, given p_i and q_i, decides to replace    `_judged`
    5   x_i is kept while the gate is closed; if it opens, a token drawn from M_q replaces x_i    `_write_token`
    6   after that token, the draft model draws again

The gate is decided by the models' most probable tokens, never by the drawn token. So only the text before a token
decides whether the token is drawn from M_p or from M_q. The token's distribution is therefore exactly the gated mixture
P_F, although lists of tokens are incomplete. If the draft's list does not show its most probable token, the draft is
asked for that token in a separate request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cosd_api.alignment import Decision
from cosd_api.decoding.model import Lost, Model
from cosd_api.decoding.passage import Passage, joined, numbered
from cosd_api.decoding.tokenwise import TokenVerdict, TokenwiseAnswer
from cosd_api.methods.lists import key_of, most_probable
from cosd_api.methods.needs import Models, check_sampling
from cosd_api.verification import Place, Verifier, coin_of, digest_of, needs_of, verifier_at
from cosd_providers.contract import Proposal, Question, Token
from cosd_providers.errors import UnsupportedError

AHEAD = 16
"""The default number of tokens to draw in one request; `draft_length` overrides it."""
_LISTED = 8  # the number of alternatives to list for each drawn token


def check_gate(models: Models) -> None:
    """Check that every model draws tokens, and reports the probabilities that open or close the gate.

    Raises:
        UnsupportedError: a model lacks one of these capabilities.
    """
    check_sampling(models, "CoSD with a temperature")
    for name, info in models:
        can = info.capabilities
        if not can.probs or not can.end_prob or (name == "draft" and not can.top_k):
            missing = "list its most probable tokens" if can.probs and can.end_prob else "report all probabilities"
            words = f"the {name} does not {missing}, the end of sequence included, by which the mixture is gated"
            hint = "Without a temperature, CoSD needs no lists."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)


@dataclass(frozen=True, slots=True)
class _OwnPick:
    """A model's most probable token at a place; `prob` is None if the probability is unknown."""

    token: Token
    prob: float | None
    strategy: str | None = None


class GatedDraws:
    """Draws the tokens of one answer from the gated mixture.

    Args:
        answer: the answer, which is written.
        models: its models, the draft first.
        verifier: the gate.
        prompt: the draft model's prompt, for verifiers whose decisions depend on the place.
    """

    def __init__(self, answer: TokenwiseAnswer, models: Sequence[Model], verifier: Verifier, prompt: str) -> None:
        self._answer = answer
        self._draft = models[0]
        self._verifier = verifier
        self._needs_q = needs_of(verifier).q
        self._prompt = digest_of(prompt)

    async def write(self) -> None:
        """Write the answer."""
        answer, before = self._answer, None
        while True:
            before = passage = await self._drafted(before)
            places = numbered(passage.tokens, len(answer.text))
            preferred = await self._preferred(places)
            contested = {at: one for at, one in preferred.items() if self._could_change(at, one)}
            heard = await self._heard(passage, contested)
            for at, token in places:
                choices = {model: found[at] for model, found in heard.items() if at in found}
                if await self._write_token(token, preferred[at], choices, passage.number, asked=at in contested):
                    before = None  # the draft cannot continue its own tokens, because an assistant drew this one
                    break
            else:
                answer.end_if_stuck(passage)

    async def _drafted(self, before: Passage | None) -> Passage:
        """Line 1: let the draft draw some tokens ahead."""
        answer = self._answer
        most = min(answer.pace.draft_length or AHEAD, answer.left)
        return await self._draft.write(most, listed=_LISTED, after=before, draw=("draft", len(answer.text)))

    async def _preferred(self, places: Sequence[tuple[int, Token]]) -> dict[int, _OwnPick]:
        """Line 2: return the draft's most probable token at each place; the keys are the places' byte offsets."""
        found: dict[int, _OwnPick] = {}
        for at, token in places:
            best = most_probable(token)
            if len(best) == 1:
                found[at] = _OwnPick(best[0], best[0].prob)
        missing = [at for at, _ in places if at not in found]
        if missing:
            text = self._answer.text + joined(token for _, token in places)
            proposals = await self._draft.propose(text, [Question(at, ()) for at in missing])
            found |= {
                at: _choice(one) or _OwnPick(Token(b"", None), None) for at, one in zip(missing, proposals, strict=True)
            }
        return found

    def _could_change(self, at: int, preferred: _OwnPick) -> bool:
        """Test whether an assistant has to be asked about the place at byte `at`."""
        if preferred.prob is None:
            return False
        return not self._answer.skip or self._at(at).contestable(preferred.prob)

    async def _heard(self, passage: Passage, contested: Mapping[int, _OwnPick]) -> dict[Model, dict[int, _OwnPick]]:
        """Line 3: return each assistant's most probable tokens at contested places, by model, then by byte offset."""
        text = passage.before + passage.data
        questions = [Question(at, (one.token.data,)) for at, one in contested.items()]

        async def ask(model: Model) -> dict[int, _OwnPick]:
            proposals = await model.propose(text, questions)
            found = {at: _choice(one) for at, one in zip(contested, proposals, strict=True)}
            self._answer.unanswered += sum(one is None for one in found.values())
            return {at: one for at, one in found.items() if one is not None}

        return await self._answer.all(ask, self._answer.models[1:] if questions else [])

    def _judged(self, at: int, mine: _OwnPick, heard: Mapping[Model, _OwnPick]) -> dict[Model, Decision]:
        """Line 4: return the verifier's decision about each assistant that answered at a place."""
        verifier, found = self._at(at), dict[Model, Decision]()
        for model, theirs in heard.items():
            agreed = key_of(theirs.token) == key_of(mine.token)
            known = mine.prob is not None and (theirs.prob is not None or not self._needs_q)
            q = math.nan if theirs.prob is None else theirs.prob
            fired = not agreed and known and verifier.replaces(mine.prob or 0.0, q)
            found[model] = Decision(
                model.index - 1,
                theirs.token.data,
                mine.prob,
                theirs.prob,
                agreed,
                fired,
                draft=mine.token.data,
                coin=coin_of(verifier),
                strategy=theirs.strategy,
            )
        return found

    async def _write_token(
        self, drawn: Token, mine: _OwnPick, heard: Mapping[Model, _OwnPick], number: int, *, asked: bool
    ) -> bool:
        """Line 5: write the draft's token, or a token that an assistant draws; return True if an assistant drew it."""
        answer = self._answer
        at = len(answer.text)
        decisions = self._judged(at, mine, heard)
        replacing = {model: one for model, one in decisions.items() if one.fired}
        while replacing:
            model = max(replacing, key=lambda one: (replacing[one].q or 0.0, -one.index))
            winner = replacing.pop(model)
            with suppress(Lost):
                passage = await model.write(1, until=lambda _: False, draw=("draw", at, model.index))
                if passage.tokens:
                    judged = TokenVerdict(
                        decisions=tuple(decisions.values()),
                        winner=winner,
                        replaced=mine.token,
                        verified=answer.complete,
                        asked=True,
                    )
                    answer.put(passage.tokens[0], model, judged, number=number)
                    return True
            del decisions[model]  # this assistant has just failed, or its context is full
        verified = answer.complete or not self._could_change(at, mine)
        judged = TokenVerdict(decisions=tuple(decisions.values()), verified=verified, asked=asked)
        answer.put(drawn, self._draft, judged, number=number)
        return False

    def _at(self, at: int) -> Verifier:
        return verifier_at(self._verifier, Place(self._prompt, at))


def _choice(proposal: Proposal | None) -> _OwnPick | None:
    """Return the first token of a model's proposal; None if there is no proposal."""
    if proposal is None:
        return None
    return _OwnPick(proposal.tokens[0], proposal.tokens[0].prob, proposal.strategy)
