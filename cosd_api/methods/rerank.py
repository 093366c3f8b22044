"""Rerank: every model writes a whole answer, and the answer with the lowest mean perplexity over all models is taken.

::

    1   every model answers alone, greedily, up to its end of sequence, a stop string or max_tokens   `answers`
    2   equal answers count as one; if only one answer is left, it is taken                           `answers`
    3   every model scores every answer by its perplexity, over the answer's tokens in the model's
        own encoding, including the end of sequence if the answer ended by itself                     `choose_text`
    4   the answer whose perplexity has the lowest arithmetic mean over the models is taken, or
        the first one listed if several are equal                                                     `choose_text`

This is a baseline of Cool-Fusion (arXiv 2407.19807, section 3.3). Before an answer is scored, a stop string and the
text after it are cut off; an answer that was cut has no end of sequence. Two answers with the same text count as
different if only one of them ended by itself, because the end of sequence changes the perplexity. An answer that has no
text before a stop string cannot be scored, and is left out unless it is the only one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cosd_api.decoding.model import Model
from cosd_api.decoding.program import Answer
from cosd_api.methods.cost import FINER, HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.perplexity import ByPerplexity, ProposedText, ProposedTexts, choose_text


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

    async def write(self, answer: Answer, *models: Model) -> None:  # noqa: ARG002 - all models
        """Write the answer."""
        candidates = await answers(answer)
        winner, segment = await choose_text(answer, candidates.distinct(), self.normalisation)
        answer.append(winner.passage, segment, whole=True)

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


async def answers(answer: Answer) -> ProposedTexts:
    """Let every model answer the prompt; return the distinct answers, each without its stop string."""
    candidates = ProposedTexts()
    for model, passage in (await answer.all(Model.write)).items():
        alone = answer.alone(passage)
        candidates.add(model.index, ProposedText(alone.data, alone.ends, passage))
    return candidates
