"""Cool-Fusion (arXiv 2407.19807): the models propose segments of text, and choose one of them together.

::

    1   every model continues the prompt and the answer so far, from its own ids, until
        some prefix of its new text ends where every model ends a word; the longest such
        prefix is its segment                                               (2.2)     `_segment`
    2   equal segments count as one; if only one segment is left, it is taken
    3   every model scores every segment by its perplexity, over the
        segment's tokens in the model's own encoding                        (2.3, equation 2)
    4   the segment whose perplexity has the lowest arithmetic mean over the
        models is taken, or the first one listed if several are equal       (equation 3)
    5   if the winning model ended after its segment, the answer ends       (2.3)

`perplexity.choose_text` implements steps 2 to 4.

**Words.** If a model's tokenizer is known (`connect(url, tokenizer=...)`), words are the pieces into which it splits a
text before it encodes them. Otherwise they are Unicode's words (`words.unicode_words`). The last word of a text does
not count, because it may still grow. White space is part of the word after it. With `align`, each model's segment may
end wherever that model alone ends a word. It is refused if no model's tokenizer is known, because it would then change
nothing.

**A segment** is never empty. A model that ends before any word is complete proposes its whole text, followed by its end
of sequence as one more token; if it wrote no text, it proposes that token alone. A model also proposes its whole text,
without an end, in three other cases: if it has written `LONGEST` tokens without reaching a common end of a word (for
example, in a long number, or in a script without spaces that its tokenizer does not split), if it has reached
`max_tokens`, or if its context is full. A segment may end inside a token of the model that wrote it. That token is cut,
and the probability of the remaining part is unknown. If the answer ends inside a token of a model that continues its
own ids, the model continues after that token, so its new text begins with the rest of the token.

**Scores.** A model scores those tokens of its own encoding that end inside the segment. A token that begins in the
answer so far and ends in the segment counts with its whole probability. A model that continues its own ids encodes the
segment together with the text that the proposing model wrote after it, and a token that crosses the end of the segment
counts with its whole probability, too. If a stop string would cut a segment, the uncut segment is scored, because stop
strings are searched for only in the answer. `max_tokens` counts the tokens of the winning segments.

**Costs.** The text that a model wrote beyond its segment is used again if the answer continues with it. A model need
not score its own text, because the probabilities of its tokens are already known. Both savings apply only if the model
reads the text as the tokens that it wrote (`Model.reads_as`), because only then would a new request have the
same result.

With `rerank`, the candidates are the fused answer and each model's own whole answer; see the module `rerank`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from cosd_api.alignment import Unit
from cosd_api.decoding.model import Model
from cosd_api.decoding.passage import Passage, joined
from cosd_api.decoding.program import Answer
from cosd_api.decoding.word_ends import complete_words
from cosd_api.methods.cost import FINER, HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.needs import Models
from cosd_api.methods.perplexity import ByPerplexity, ProposedText, ProposedTexts, choose_text
from cosd_api.methods.rerank import Rerank, answers
from cosd_providers.contract import Token, WordEnds
from cosd_providers.errors import UnsupportedError

LONGEST = 32
"""The largest number of tokens that a model writes for one segment."""

_TOKENS = 2  # the assumed average number of tokens in a segment
_DIFFERENT = 0.5  # the assumed share of segments about which the models differ


@dataclass(frozen=True, kw_only=True)
class CoolFusion(ByPerplexity):
    """Cool-Fusion: each model proposes the next words, all models score each proposal, and the best one is written.

    The best proposal is the one with the lowest mean perplexity over all models (arXiv 2407.19807, section 2). The
    method needs two or more models with any tokenizers, each of which scores text (`Capabilities.score`). The answer
    streams segment by segment; a segment is usually one or a few words.

    Attributes:
        normalisation: the divisor of a segment's negative log-likelihood. `"token"` divides by the number of the
            scoring model's tokens, which gives the usual perplexity; `"byte"` divides by the bytes of the text;
            `"sum"` does not divide (the published equation 2), which favours short segments.
        align: whether each model's segment may end wherever that model ends a word (the paper's Cool-align), instead of
            only where all models end a word. The tokenizer of at least one model must be known (`connect(url,
            tokenizer=...)`).
        rerank: whether to compare the fused answer with each model's own answer, as `Rerank` does (the paper's
            Cool+Rerank). The answer is then not streamed.

    Raises:
        SettingError: there is no such normalisation.
    """

    name: ClassVar[str] = "cool"
    decides: ClassVar[str] = "the perplexity of segments"

    align: bool = False
    rerank: bool = False

    async def write(self, answer: Answer, *models: Model) -> None:
        """Write the answer."""
        if not self.rerank:
            await self._fuse(answer)
        candidates = await answers(answer)
        fused = await answer.scratch(self._fuse)
        mine = ProposedText(fused.text, fused.ended, Passage(models[0], (), 0, None), fused.sources)
        candidates.join(mine)
        winner, segment = await choose_text(answer, candidates.distinct(), self.normalisation)
        if winner is mine:
            answer.copy(fused, replace(segment, reason=f"the fused answer: {segment.reason}"))
        answer.append(winner.passage, segment, whole=True)

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that does not score text, and `align` if no model's words are known; see `Method.examine`."""
        warnings = super().examine(models, unit)
        if self.align and not any(info.capabilities.words for _, info in models):
            words = "align (Cool-align) ends segments at each model's own words, and no model's words are known"
            hint = "Give the models' own tokenizers, connect(url, tokenizer=...) or `tokenizer` in a settings file. "
            hint += "Or leave out align: segments then end at Unicode's words."
            raise UnsupportedError(words, endpoint=models[0][1].endpoint, hint=hint)
        return warnings

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of writing and scoring the segments; see `Method.cost`."""
        n, models = plan.max_tokens, plan.models
        differences = n / _TOKENS * _DIFFERENT
        scores = differences * (models - 1)
        asked, read = prompt.scored(prompt.expected + n / 2, _TOKENS)
        # In the most expensive case, each token needs a new continuation, and every proposal for it is scored.
        segments = most_segments(prompt, n)
        requests = Bounds(1, 1 + differences + scores * asked, n + models * segments.requests)
        written = (1 + differences) * LONGEST / 2
        read_and_written = (1 + differences) * (prompt.expected + n / 2) + scores * read + written
        high = segments.written + models * segments.scored
        tokens = Bounds(prompt.least + 1, read_and_written, high)
        if not self.rerank:
            return Cost(requests, tokens, written)
        more = Rerank(normalisation=self.normalisation).cost(replace(plan, models=models + 1), model, prompt)
        return Cost(requests, tokens, written) + more

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"{plan.max_tokens} tokens in segments of {_TOKENS}; for {_DIFFERENT:.0%} of them the models differ, each "
            f"scores the others' proposals, and writes on in a new request; the endpoints encode text; {SCORED}",
            f"a segment for every token, about which all models differ; {HIGHEST_SCORED}",
        )

    async def _fuse(self, answer: Answer) -> None:
        """Repeat steps 1 to 5 until the answer is complete."""
        words = await answer.all(Model.words)
        while True:
            proposed = await answer.all(partial(self._segment, answer, words, answer.models))
            candidates = ProposedTexts()
            for model, one in proposed.items():
                candidates.add(model.index, one)
            winner, segment = await choose_text(answer, candidates.distinct(), self.normalisation)
            answer.append(winner.passage, segment)

    async def _segment(
        self, answer: Answer, words: Mapping[Model, WordEnds], heard: Sequence[Model], model: Model
    ) -> ProposedText:
        """Step 1: return the proposal of one model."""
        ends = [words[one] for one in ([model] if self.align else heard)]

        def complete(tokens: Sequence[Token]) -> int:
            return complete_words(joined(tokens), ends)

        passage = await model.read_on(min(answer.left, LONGEST), until=lambda tokens: complete(tokens) > 0)
        if passage.end is not None:  # either no word is complete, or the last word cannot grow any more
            return ProposedText(passage.data, passage.ends, passage)
        return ProposedText.of(passage, complete(passage.tokens))


@dataclass(frozen=True, slots=True)
class MostSegments:
    """The highest cost at one model, assuming that a segment of the greatest length begins at every token.

    Attributes:
        requests: the number of requests for scoring one segment at each place.
        scored: the number of tokens billed for scoring these segments.
        written: the number of tokens billed for one continuation at each place.
    """

    requests: int
    scored: int
    written: int


def most_segments(prompt: Reading, tokens: int) -> MostSegments:
    """Compute the highest cost of the segments of an answer that has `tokens` tokens."""
    requests = scored = written = 0
    for left in range(tokens, 0, -1):
        before, segment = prompt.most + FINER * (tokens - left), FINER * min(LONGEST, left)
        asked, read = prompt.most_scored(before, segment)
        requests, scored, written = requests + asked, scored + read, written + before + segment
    return MostSegments(requests, scored, written)
