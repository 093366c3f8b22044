"""A mixture of experts over tokens: each token is drawn from one model, and chance says from which.

::

    1   the model of each place is drawn: model i with probability w_i                   `_run`
    2   that model draws the token from its own distribution: x ~ M_i                    `_drawn`
    3   places in a row that fall to one model are one request to it                     `write`

Drawing the model first and then the token is drawing from the mean E = w_1 M_1 + w_2 M_2 + ...: each token x has the
probability w_1 M_1(x) + w_2 M_2(x) + ... So the answers are distributed as those drawn from averaged distributions,
and no distribution has to be known. A model that takes no ids reads the text again where it follows another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.base import Models
from cosd_api.methods.cost import FINER, ROUNDS, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.gated import check_sampling
from cosd_api.methods.weighted import Weighted


@dataclass(frozen=True, kw_only=True)
class Mixture(Weighted):
    """Each token is drawn from one of the models, which is drawn by its weight (arXiv 2605.00419).

    The answers are distributed as those drawn from the weighted mean of the models' distributions. It takes two or more
    models with one tokenizer, and needs no probabilities: a model has to draw, and nothing else. The `seed` of an
    answer decides both draws.

    Attributes:
        weights: the probabilities of the models, in their order; equal by default. Only their ratios count.
            `"route"` weighs the models by the prompt, as `Route` does.
        tau: the temperature of these weights by the prompt.

    Raises:
        SettingError: they are no weights.
    """

    name: ClassVar[str] = "mixture"
    accepts: ClassVar[frozenset[str]] = Weighted.accepts | {"unit"}
    decides: ClassVar[str] = "a draw of the model for each token"
    ordered: ClassVar[bool] = True
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    @property
    def temperature(self) -> float:
        """1: every token is drawn."""
        return 1.0

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that does not draw; see `Method.examine`."""
        check_sampling(models, "'mixture'")
        return super().examine(models, unit)

    async def write(self, writer: AnswerWriter) -> None:
        """Write one answer to its end."""
        place = 0
        while not writer.over:
            model, length = self._run(writer, place)
            passage = await self._drawn(writer, model, place, length)
            if passage is None:
                continue  # it is lost, and the place falls to another one
            if passage.tokens:
                share = self.shares(writer.count, writer.models)[model]
                tokens = passage.tokens
                entry = Contender((model - 1,), passage.data, tokens[-1].end)
                segment = DecidedSegment((entry,), 0, f"{writer.name(model)} was drawn, of weight {share:.3g}")
                writer.write(tokens, model, number=passage.number, segment=segment)
                place += len(tokens)
            writer.end_with(passage)

    def _run(self, writer: AnswerWriter, place: int) -> tuple[int, int]:
        """Lines 1 and 3: the model of a place, and how many places in a row fall to it."""
        model = self._model(writer, place)
        length = 1
        while length < writer.left and self._model(writer, place + length) == model:
            length += 1
        return model, length

    def _model(self, writer: AnswerWriter, place: int) -> int:
        """Line 1: the model of one place, counted in tokens."""
        shares = self.shares(writer.count, writer.models)
        # Once a model is lost, another number: of the old one it is known that the lost model would have been drawn.
        lost = [model for model in range(writer.count) if model not in writer.models]
        chance = writer.chance.number("model", place, *lost)
        below = 0.0
        for model, share in shares.items():
            below += share
            if chance < below:
                return model
        return max(model for model, share in shares.items() if share)  # the sum of all is rounded

    async def _drawn(self, writer: AnswerWriter, model: int, place: int, length: int) -> Passage | None:
        """Line 2: some tokens from one model, on its own path; None if it is lost."""

        async def draw(model: int) -> Passage:
            seed = writer.chance.seed("draw", place)
            return await writer.continuation(
                model, writer.text, max_tokens=length, enough=writer.stops, temperature=1, seed=seed
            )

        return (await writer.ask_all(draw, [model])).get(model)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """The cost of an answer at one model: a request for each of its runs; see `Method.cost`."""
        n = plan.max_tokens
        share = self.shares(plan.models, range(plan.models)).get(model, 0.0)
        runs = share + (n - 1) * share * (1 - share)
        high = n * ROUNDS if share or model == 0 else 0
        tokens = Bounds(0, runs * (prompt.expected + n / 2) + n * share, high * (prompt.most + FINER * n))
        return self.with_weights(Cost(Bounds(0, runs, high), tokens, n * share), prompt)

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002
        """The basis of `cost`."""
        words = Assumptions(
            "max_tokens tokens, which fall to the models by their weights; those in a row are one request, that reads "
            "all before it",
            "every token falls to this model, in a request of its own",
        )
        return self.with_measure(words)
