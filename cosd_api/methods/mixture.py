"""Draws from the weighted mean of all models' distributions: a random choice selects the model that draws each token.

::

    1   for each place, a model is chosen at random: model i with probability w_i        `_run`
    2   this model draws the token from its own distribution: x ~ M_i                    `_drawn`
    3   consecutive places of the same model share one request                           `write`

Each token x is drawn with probability w_1 M_1(x) + w_2 M_2(x) + ..., which is its probability in the mean
E = w_1 M_1 + w_2 M_2 + ... So answers have the same distribution as if their tokens were drawn from E, although no
model has to report its distribution (a mixture of experts, arXiv 2605.00419). After the turn of a different model, a
model whose server accepts no ids continues from the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.cost import FINER, ROUNDS, Assumptions, Bounds, Cost, Plan, Reading


class MeanDraws:
    """Draws the tokens of one answer from the weighted mean.

    Args:
        writer: writes the answer.
        shares: a function that returns the weights of the remaining models, given the number of all models and the
            indices of the remaining ones.
    """

    def __init__(self, writer: AnswerWriter, shares: Callable[[int, Sequence[int]], Mapping[int, float]]) -> None:
        self._writer = writer
        self._given = shares

    async def write(self) -> None:
        """Write the answer."""
        writer, place = self._writer, 0
        while not writer.over:
            model, length = self._run(place)
            passage = await self._drawn(model, place, length)
            if passage is None:
                continue  # the model is lost, so a different model is chosen for this place
            if passage.tokens:
                share = self._shares()[model]
                tokens = passage.tokens
                entry = Contender((model - 1,), passage.data, tokens[-1].end)
                segment = DecidedSegment((entry,), 0, f"{writer.name(model)} was drawn, of weight {share:.3g}")
                writer.write(tokens, model, number=passage.number, segment=segment)
                place += len(tokens)
            writer.end_with(passage)

    def _shares(self) -> Mapping[int, float]:
        return self._given(self._writer.count, self._writer.models)

    def _run(self, place: int) -> tuple[int, int]:
        """Lines 1 and 3: choose the model for a place; return it with the number of consecutive places it gets."""
        model = self._model(place)
        length = 1
        while length < self._writer.left and self._model(place + length) == model:
            length += 1
        return model, length

    def _model(self, place: int) -> int:
        """Line 1: choose the model for one place; places are counted in tokens."""
        writer, shares = self._writer, self._shares()
        # After a model is lost, a new random number is needed, because the old one is known to select that model.
        lost = [model for model in range(writer.count) if model not in writer.models]
        chance = writer.chance.number("model", place, *lost)
        below = 0.0
        for model, share in shares.items():
            below += share
            if chance < below:
                return model
        return max(model for model, share in shares.items() if share)  # rounding kept the sum below `chance`

    async def _drawn(self, model: int, place: int, length: int) -> Passage | None:
        """Line 2: let one model draw up to `length` tokens; return None if the model is lost."""
        writer = self._writer

        async def draw(model: int) -> Passage:
            seed = writer.chance.seed("draw", place)
            return await writer.continuation(
                model, writer.text, max_tokens=length, enough=writer.stops, temperature=1, seed=seed
            )

        return (await writer.ask_all(draw, [model])).get(model)


def cost_of_draws(plan: Plan, model: int, share: float, prompt: Reading) -> Cost:
    """Forecast the cost at a model with the weight `share`: one request for each run of consecutive places."""
    n = plan.max_tokens
    runs = share + (n - 1) * share * (1 - share)
    high = n * ROUNDS if share or model == 0 else 0
    tokens = Bounds(0, runs * (prompt.expected + n / 2) + n * share, high * (prompt.most + FINER * n))
    return Cost(Bounds(0, runs, high), tokens, n * share)


def draws_assumptions(plan: Plan) -> Assumptions:
    """Describe in words what `cost_of_draws` assumes."""
    return Assumptions(
        f"{plan.max_tokens} tokens, which fall to the models by their weights; those in a row are one request, that "
        "reads all before it",
        "every token falls to this model, in a request of its own",
    )
