"""AdaFuse (arXiv 2601.06022): each model proposes one word if it is unsure, or several words if it is confident.

All models score all proposals, and the best proposal is written.

::

    1   every model writes a span of words, which ends after the first word of which the
        model is not confident, or after `words` words                                       `span`
    2   a model that is not confident of its first word makes more proposals: it starts
        from each of the `beams` - 1 next most probable first tokens, and writes up to the
        end of the first word                                                                `_proposals`
    3   equal proposals count as one; if only one proposal is left, it is taken
    4   every model scores every proposal by the mean negative log-likelihood (NLL) of the
        proposal's tokens in the model's own encoding
    5   the NLLs of each proposal are averaged over the models, excluding outliers; the
        proposal with the lowest average is taken, or the first one if several are equal     `_combined`
    6   if the winning model ended after its proposal, the answer ends

A model is **confident** of a word if the probability of the token that contains the word's first byte exceeds that of
the next most probable token by at least `margin`. If that token has no alternatives (for example, because it is one
character that consists of several tokens), the next most probable token is assumed to have all the remaining
probability.

**Words** and the ends of answers are defined as in the module `cool`: a word ends where every model ends a word, the
white space before a word is part of it, and the last word of a text may still grow. A model proposes all the text that
it has written if it wrote its end of sequence, if it has written `LONGEST` tokens without completing its span, if it
has reached `max_tokens`, or if its context is full. The proposal includes the end of sequence if the model wrote one.
In step 2, one of the alternative first tokens may be the end of sequence. After any other alternative, the model
continues from the token's id. If its server accepts no ids, the model encodes the answer followed by that token, and
continues from there.

**Outliers.** When three or more models score a proposal, its largest and its smallest NLL are excluded if the largest
is more than `outliers` times the smallest.

For each proposal, results record exp(NLL) for each model, which is the perplexity, and exp(mean NLL), which is the
geometric mean of the perplexities. In all other respects, steps 3 to 6 are the same as in the module `cool`
(`choose_text`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

from cosd_api.extend import (
    HIGHEST_SCORED,
    LONGEST,
    SCORED,
    Answer,
    Assumptions,
    Bounds,
    ByPerplexity,
    Cost,
    Model,
    Passage,
    Plan,
    ProposedText,
    ProposedTexts,
    Reading,
    RoleNeeds,
    between,
    check_count,
    choose_text,
    common_ends,
    joined,
    most_segments,
)
from cosd_providers import Token
from cosd_providers.contract import WordEnds

_TOKENS = 5  # the assumed average number of tokens in a winning proposal
_UNSURE = 0.25  # the assumed share of spans at whose beginning a model is unsure
_DIFFERENT = 0.5  # the assumed share of spans about which the models differ


@dataclass(frozen=True, kw_only=True)
class AdaFuse(ByPerplexity):
    """AdaFuse: each model proposes a span of words, longer if it is confident, and the best span is written.

    Every model proposes the next span of one to three words. A model that is not confident of its first word also
    proposes alternatives. All models score every proposal, and the span with the lowest mean negative log-likelihood
    (NLL) is written. This is the method of arXiv 2601.06022, for two or more models with any tokenizers. Each model
    must score text and list its most probable tokens. The answer streams span by span.

    Attributes:
        normalisation: the divisor of a proposal's NLL, `"token"`, `"byte"` or `"sum"`; see `CoolFusion`.
        margin: the smallest difference, in [0, 1], between a model's two largest probabilities at which the model
            counts as confident.
        words: the largest number of words in a span, at least 1.
        beams: the number of proposals that an unsure model makes, including its own span; at least 1.
        outliers: a ratio of at least 1. If three or more models score a proposal, and its largest NLL is more than
            `outliers` times its smallest, both are excluded.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "adafuse"
    decides: ClassVar[str] = "the perplexity of segments"

    needs: ClassVar[RoleNeeds] = {"models": ("lists", "scores")}

    margin: Annotated[float, between(0, 1)] = 0.7
    words: Annotated[int, check_count] = 3
    beams: Annotated[int, check_count] = 3
    outliers: Annotated[float, between(1)] = 10.0

    @property
    def least_listed(self) -> int:
        """The number of alternatives that each model must list for each of its tokens."""
        return max(self.beams - 1, 1)

    async def write(self, answer: Answer, *models: Model) -> None:  # noqa: ARG002 - all models
        """Write the answer."""
        words = await answer.all(Model.words)
        while True:
            heard = [words[model] for model in answer.models]
            candidates = ProposedTexts()
            for model, proposals in (await answer.all(partial(self._proposals, answer, heard))).items():
                for at, one in enumerate(proposals):
                    candidates.add(model.index, one, own=at == 0)
            winner, segment = await choose_text(answer, candidates.distinct(), self.normalisation, self._combined)
            answer.append(winner.passage, segment)

    async def _proposals(self, answer: Answer, words: Sequence[WordEnds], model: Model) -> list[ProposedText]:
        """Steps 1 and 2: return the proposals of one model, its own span first."""
        room = min(answer.left, LONGEST)
        passage = await model.read_on(room, until=lambda tokens: self.span(tokens, words) > 0, listed=self.least_listed)
        own = _proposal(passage, self.span(passage.tokens, words))
        if not passage.tokens or self._is_sure(passage.tokens[0]):
            return [own]

        async def beam(first: Token) -> ProposedText:
            """Step 2: return the proposal that starts with an alternative first token."""
            begun = replace(passage, tokens=(first,), end=None)
            if room > 1 and not first.end and not first_word(first.data, words):
                await model.begun([first])
                more = await model.write(
                    room - 1,
                    text=answer.text + first.data,
                    until=lambda tokens: first_word(first.data + joined(tokens), words) > 0,
                )
                begun = replace(more, tokens=(first, *more.tokens))
            return _proposal(begun, first_word(begun.data, words))

        return [own, *await model.several(beam, passage.tokens[0].alternatives[: self.beams - 1])]

    def span(self, tokens: Sequence[Token], words: Sequence[WordEnds]) -> int:
        """Step 1: return the length in bytes of the span at the beginning of `tokens`; 0 if no span is complete."""
        ends, start = common_ends(joined(tokens), words), 0
        for number, end in enumerate(ends, 1):
            if number == self.words or not self._is_sure(_token_at(tokens, start)):
                return end
            start = end
        return 0

    def _is_sure(self, token: Token) -> bool:
        """Test whether the model that wrote this token is confident of the word that begins in it."""
        if token.prob is None:
            return False
        second = next((one.prob or 0.0 for one in token.alternatives), 1 - token.prob)
        return token.prob - second >= self.margin

    def _combined(self, logs: Sequence[float]) -> float:
        """Step 5: return the mean of the models' NLLs, excluding outliers."""
        ordered = sorted(logs)
        if len(ordered) > 2 and ordered[-1] > self.outliers * ordered[0]:
            ordered = ordered[1:-1]
        return math.fsum(ordered) / len(ordered) if math.isfinite(ordered[-1]) else math.inf

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:  # noqa: ARG002
        """Forecast the cost of writing and scoring the proposals; see `Method.cost`."""
        n, models = plan.max_tokens, plan.models
        spans, proposals = n / _TOKENS, models * (1 + _UNSURE * (self.beams - 1))
        writes, scores = spans * (1 + _UNSURE * (self.beams - 1)), spans * _DIFFERENT * proposals
        asked, read = prompt.scored(prompt.expected + n / 2, _TOKENS)
        # In the most expensive case, every token is a span of its own, and every proposal for it is scored.
        spans_at_most = most_segments(prompt, n)
        most_asked = n + models * spans_at_most.requests
        written = spans * LONGEST / 2
        read_and_written = writes * (prompt.expected + n / 2) + scores * read + written
        high = self.beams * (spans_at_most.written + models * spans_at_most.scored)
        tokens = Bounds(prompt.least + 1, read_and_written, high)
        return Cost(Bounds(1, writes + scores * asked, self.beams * most_asked), tokens, written)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"{plan.max_tokens} tokens in spans of {_TOKENS}; before {_UNSURE:.0%} of them each model is unsure, and "
            f"proposes {self.beams} texts; about {_DIFFERENT:.0%} they differ, and each model scores each proposal; "
            f"{SCORED}",
            f"a span for every token, about which all models are unsure and differ; {HIGHEST_SCORED}",
        )


def _proposal(passage: Passage, length: int) -> ProposedText:
    """Propose the first `length` bytes of a model's passage, or all of it if it has ended or `length` is 0."""
    if passage.end is not None or not length:
        return ProposedText(passage.data, passage.ends, passage)
    return ProposedText.of(passage, length)


def first_word(data: bytes, words: Sequence[WordEnds]) -> int:
    """Return the length in bytes of the first word on whose end all models agree; 0 if no such word is complete."""
    return next(iter(common_ends(data, words)), 0)


def _token_at(tokens: Sequence[Token], start: int) -> Token:
    """Return the token that contains the byte at `start`."""
    return next(token for at, token in enumerate(tokens) if len(joined(tokens[: at + 1])) > start)
