"""Rerank: every model writes a whole answer, and the answer that all models together find least perplexing is taken.

::

    1   every model answers alone, greedily: to its end, a stop string or max_tokens                  `answers`
    2   equal answers are one; if only one is left, it is the answer                                  `proposed`
    3   every model scores every answer: the perplexity of its own tokens of that text, and of its
        end of sequence if the answer ended by itself                                                 `choose`
    4   the answer with the least arithmetic mean over the models; of equals the first listed         `choose`

It is the baseline of Cool-Fusion (arXiv 2407.19807, section 3.3). Each answer is cut before a stop string first, and
has no end then. Two answers of the same text differ if only one of them ended by itself: with the end it has another
perplexity. An answer that a stop string leaves empty cannot be scored, and is left out if there is another answer.
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
    """The whole answer of one of the models: the answer that all models together find least perplexing.

    The baseline of Cool-Fusion (arXiv 2407.19807). It takes two or more models with any tokenizers, each of which
    scores text (`Capabilities.score`). The answer comes at once, when all answers are complete and scored.

    Attributes:
        normalisation: the divisor of an answer's negative log-likelihood: `"token"` takes the perplexity as usual, by
            each model's own tokens; `"byte"` the bytes of the text; `"sum"` nothing, which prefers short answers.

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
        """One answer, and a score of every answer; see `Method.cost`."""
        n, others = plan.max_tokens, plan.models - 1
        asked, read = prompt.scored(prompt.expected, n)
        most_asked, most_read = prompt.most_scored(prompt.most, FINER * n)  # of every answer, including its own
        high = prompt.most + FINER * n + plan.models * most_read
        tokens = Bounds(prompt.least + 1, prompt.expected + n + others * read, high)
        return Cost(Bounds(1, 1 + others * asked, 1 + plan.models * most_asked), tokens, n)

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002
        """The basis of `cost`."""
        return Assumptions(
            f"every model writes max_tokens tokens, and scores every other answer; {SCORED}",
            f"no two answers are equal; {HIGHEST_SCORED}",
        )


async def answers(writer: AnswerWriter) -> Mapping[int, Passage]:
    """Every model's own answer to the prompt, by model."""

    async def answer(model: int) -> Passage:
        return await writer.continuation(model, b"", max_tokens=writer.left, enough=writer.stops)

    return await writer.ask_all(answer)


def proposed(writer: AnswerWriter, found: Mapping[int, Passage]) -> ProposedTexts:
    """The distinct answers, each cut before its stop string."""
    candidates = ProposedTexts()
    for model, passage in found.items():
        alone = writer.response_of(passage.tokens)
        ends = bool(alone.tokens) and alone.tokens[-1].token.end
        candidates.add(model, ProposedText(bytes(alone.text), ends, passage.tokens, passage))
    return candidates
