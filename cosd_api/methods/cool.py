"""Cool-Fusion (arXiv 2407.19807): the models write segment by segment, and choose together.

::

    1   every model writes, on its own path through prompt and answer so far, until some prefix
        of its new text ends with a word for every model; the longest such prefix is its
        segment                                                             (2.2)     `_segment`
    2   equal segments are one; if only one is left, it is taken
    3   every model scores every segment: the perplexity of its own tokens of it      (2.3, equation 2)
    4   the segment with the least arithmetic mean over the models is taken; of
        equals the first listed                                             (equation 3)
    5   if the winner ended after its segment, the answer ends              (2.3)

Steps 2 to 4 are `perplexity.choose`.

**Words.** A model's own tokenizer splits a text into words before it encodes them, if it is known (`connect(url,
tokenizer=...)`); otherwise the words are Unicode's (`words.unicode_words`). The last word of a text may still grow, so
it does not count. White space is a part of the word after it. With `align` each model's segment ends with a word of its
own; that differs only between models whose own words are known.

**A segment** is never empty. A model that ends before any word is complete proposes its whole text, and its end of
sequence as one more token; without text, that token alone. Other models propose their whole text without an end: a
model that has written `LONGEST` tokens without a common word (a long number, a script without spaces of which its
tokenizer makes one word), that reached `max_tokens`, or whose context is full. A segment may end inside a token of the
model that wrote it: that token is cut, and the probability of the part is not known. If the answer ends inside a token
of a model that is asked after ids, the model continues after that token: the rest of the token comes first.

**Scores** are about a model's own tokens of the answer so far and the segment that end after the former; a token that
lies across is scored whole. A model that is asked after ids encodes the segment together with the proposer's text after
it, and a token that lies across the segment's end is whole, too. A segment that a stop string cuts is scored whole:
stop strings are found in the answer alone. `max_tokens` counts the tokens of the winners.

**Costs.** A model's text beyond its segment is read further if the answer has followed it, and a model needs no score
of its own text, whose probabilities are known. Both hold only if its path through the text is the tokens that it wrote
(`AnswerWriter.reads_as`), so that a new request would give the same.

With `rerank` this answer is one candidate, and the whole answer of each model is another: see `rerank`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.cost import FINER, HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.perplexity import ByPerplexity, ProposedText, ProposedTexts, choose
from cosd_api.methods.rerank import Rerank, answers, proposed
from cosd_api.methods.words import complete_words, unicode_words
from cosd_providers.contract import Token, WordEnds

LONGEST = 32
"""Tokens that a model writes for one segment, at most."""

_TOKENS = 2  # of a segment, on average
_DIFFERENT = 0.5  # segments about which the models differ


@dataclass(frozen=True, kw_only=True)
class CoolFusion(ByPerplexity):
    """Cool-Fusion: each model writes the next words, all models score each proposal, and the least perplexing is taken.

    The method of arXiv 2407.19807, for two or more models with any tokenizers, each of which scores text
    (`Capabilities.score`). The answer streams segment by segment: a word or a few.

    Attributes:
        normalisation: the divisor of a segment's negative log-likelihood: `"token"` takes the perplexity as usual, by
            each model's own tokens; `"byte"` the bytes of the text; `"sum"` nothing (equation 2 as printed), which
            prefers short segments.
        align: whether every model's segment ends with a word of its own, not with a common word.
        rerank: whether to compare the answer with the whole answers of the models, see `Rerank`. The answer then comes
            at once.

    Raises:
        SettingError: there is no such normalisation.
    """

    name: ClassVar[str] = "cool"
    decides: ClassVar[str] = "the perplexity of segments"

    align: bool = False
    rerank: bool = False

    async def write(self, writer: AnswerWriter) -> None:
        """Write the answer."""
        if not self.rerank:
            await self._fuse(writer)
            return
        candidates = proposed(writer, await answers(writer))
        fused = writer.scratch_copy()
        await self._fuse(fused)
        mine = ProposedText(fused.text, fused.ended, (), Passage((), 0, None), fused.sources)
        candidates.join(mine)
        winner, segment = await choose(writer, candidates.distinct(), self.normalisation)
        if winner is mine:
            writer.copy(fused, replace(segment, reason=f"the fused answer: {segment.reason}"))
        else:
            writer.write(winner.tokens, winner.models[0], number=winner.passage.number, segment=segment)
            writer.end_with(winner.passage)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """A continuation up to each difference, and a score of each other proposal there; see `Method.cost`."""
        n, models = plan.max_tokens, plan.models
        differences = n / _TOKENS * _DIFFERENT
        scores = differences * (models - 1)
        asked, read = prompt.scored(prompt.expected + n / 2, _TOKENS)
        # At most a new continuation for each token, and a score of each proposal there.
        segments = most_segments(prompt, n)
        requests = Bounds(1, 1 + differences + scores * asked, n + models * segments.requests)
        written = (1 + differences) * LONGEST / 2
        read_and_written = (1 + differences) * (prompt.expected + n / 2) + scores * read + written
        high = segments.written + models * segments.scored
        tokens = Bounds(prompt.least + 1, read_and_written, high)
        if not self.rerank:
            return Cost(requests, tokens, written)
        more = Rerank(normalisation=self.normalisation).cost(replace(plan, models=models + 1), model, prompt)
        return Cost(_sum(requests, more.requests), _sum(tokens, more.tokens), written + more.written)

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002
        """The basis of `cost`."""
        return Assumptions(
            f"max_tokens tokens in segments of {_TOKENS}; for {_DIFFERENT:.0%} of them the models differ, each scores "
            f"the others' proposals, and writes on in a new request; the endpoints encode text; {SCORED}",
            f"a segment for every token, about which all models differ; {HIGHEST_SCORED}",
        )

    async def _fuse(self, writer: AnswerWriter) -> None:
        """Steps 1 to 5, until the answer is over."""
        found = await writer.ask_all(writer.splitter)
        splitters = {model: split or unicode_words for model, split in found.items()}
        if self.align and not any(found.values()):
            writer.warn(
                "no model's own words are known, so that align changes nothing: give connect(url, tokenizer=...)"
            )

        async def propose(model: int) -> ProposedText:
            words = [splitters[model]] if self.align else [splitters[one] for one in writer.models]
            return await _segment(writer, model, words)

        while not writer.over:
            candidates = ProposedTexts()
            for model, one in (await writer.ask_all(propose)).items():
                candidates.add(model, one)
            winner, segment = await choose(writer, candidates.distinct(), self.normalisation)
            writer.write(winner.tokens, winner.models[0], number=winner.passage.number, segment=segment)
            writer.end_with(winner.passage)


@dataclass(frozen=True, slots=True)
class MostSegments:
    """The highest cost at one model: a segment for every token of an answer, each as long as possible.

    Attributes:
        requests: to score one segment at each place.
        scored: tokens billed for these scores.
        written: tokens billed for a continuation at each place.
    """

    requests: int
    scored: int
    written: int


def most_segments(prompt: Reading, tokens: int) -> MostSegments:
    """The highest cost of the segments of an answer of `tokens` tokens."""
    requests = scored = written = 0
    for left in range(tokens, 0, -1):
        before, segment = prompt.most + FINER * (tokens - left), FINER * min(LONGEST, left)
        asked, read = prompt.most_scored(before, segment)
        requests, scored, written = requests + asked, scored + read, written + before + segment
    return MostSegments(requests, scored, written)


async def _segment(writer: AnswerWriter, model: int, words: Sequence[WordEnds]) -> ProposedText:
    """Step 1: the proposal of one model."""

    def complete(tokens: Sequence[Token]) -> int:
        return complete_words(b"".join(token.data for token in tokens), words)

    room = min(writer.left, LONGEST)
    passage = await writer.read_on(
        model, max_tokens=room, ahead=min(writer.left, LONGEST), enough=lambda tokens: complete(tokens) > 0
    )
    if passage.end is not None:  # no word is complete, or it is the last one
        ends = bool(passage.tokens) and passage.tokens[-1].end
        return ProposedText(passage.data, ends, passage.tokens, passage)
    return ProposedText.of(passage, complete(passage.tokens))


def _sum(one: Bounds, other: Bounds) -> Bounds:
    return Bounds(one.low + other.low, one.expected + other.expected, one.high + other.high)
