"""Rerank: every model writes a whole answer, and the answer with the lowest mean perplexity over all models is taken.

::

    1   every model answers alone, greedily, up to its end of sequence, a stop string or max_tokens   `answers`
    2   equal answers count as one; if only one answer is left, it is taken                           `proposed`
    3   every model scores every answer by its perplexity, over the answer's tokens in the model's
        own encoding, including the end of sequence if the answer ended by itself                     `choose`
    4   the answer whose perplexity has the lowest arithmetic mean over the models is taken, or
        the first one listed if several are equal                                                     `choose`

This is a baseline of Cool-Fusion (arXiv 2407.19807, section 3.3). Before an answer is scored, a stop string and the
text after it are cut off; an answer that was cut has no end of sequence. Two answers with the same text count as
different if only one of them ended by itself, because the end of sequence changes the perplexity. An answer that has no
text before a stop string cannot be scored, and is left out unless it is the only one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.cost import FINER, HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.perplexity import ByPerplexity, ProposedText, ProposedTexts, choose


@dataclass(frozen=True, kw_only=True)
class Rerank(ByPerplexity):
    """Rerank: every model answers, all models score every answer, and the best answer is taken.

    The best answer is the one with the lowest mean perplexity over all models. This is a baseline of Cool-Fusion (arXiv
    2407.19807, section 3.3). The method needs two or more models with any tokenizers, each of which scores text
    (`Capabilities.score`). The answer is not streamed: it arrives when all answers are complete and scored.

    Attributes:
        normalisation: the divisor of an answer's negative log-likelihood. `"token"` divides by the number of the
            scoring model's tokens, which gives the usual perplexity; `"byte"` divides by the bytes of the text;
            `"sum"` does not divide (the published equation 2), which favours short answers.

    Raises:
        SettingError: there is no such normalisation.
    """

    name: ClassVar[str] = "rerank"
    decides: ClassVar[str] = "the perplexity of whole answers"

    async def write(self, writer: AnswerWriter) -> None:
        """Write the answer."""
        candidates = proposed(writer, await answers(writer))
        winner, segment = await choose(writer, candidates.distinct(), self.normalisation)
        writer.write(winner.tokens, winner.models[0], number=winner.passage.number, segment=segment)
        writer.end_with(winner.passage)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:  # noqa: ARG002 - the same for all
        """Forecast the cost of writing one answer and scoring the other models' answers; see `Method.cost`."""
        n, others = plan.max_tokens, plan.models - 1
        asked, read = prompt.scored(prompt.expected, n)
        most_asked, most_read = prompt.most_scored(prompt.most, FINER * n)  # a model may score its own answer, too
        high = prompt.most + FINER * n + plan.models * most_read
        tokens = Bounds(prompt.least + 1, prompt.expected + n + others * read, high)
        return Cost(Bounds(1, 1 + others * asked, 1 + plan.models * most_asked), tokens, n)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"every model writes {plan.max_tokens} tokens, and scores every other answer; {SCORED}",
            f"no two answers are equal; {HIGHEST_SCORED}",
        )


async def answers(writer: AnswerWriter) -> Mapping[int, Passage]:
    """Let every model answer the prompt; return the answers by model."""

    async def answer(model: int) -> Passage:
        return await writer.continuation(model, b"", max_tokens=writer.left, enough=writer.stops)

    return await writer.ask_all(answer)


def proposed(writer: AnswerWriter, found: Mapping[int, Passage]) -> ProposedTexts:
    """Return the distinct answers, each without its stop string and the text after it."""
    candidates = ProposedTexts()
    for model, passage in found.items():
        alone = writer.response_of(passage.tokens)
        ends = bool(alone.tokens) and alone.tokens[-1].token.end
        candidates.add(model, ProposedText(bytes(alone.text), ends, passage.tokens, passage))
    return candidates
