"""Draws from the weighted mean of all models' distributions: a random choice selects the model that draws each token.

::

    1   for each place, a model is chosen at random: model i with probability w_i        `_run`
    2   this model draws the token from its own distribution: x ~ M_i                    `draw_from_mean`
    3   consecutive places of the same model share one request                           `_run`

Each token x is drawn with probability w_1 M_1(x) + w_2 M_2(x) + ..., which is its probability in the mean
E = w_1 M_1 + w_2 M_2 + ... So answers have the same distribution as if their tokens were drawn from E, although no
model has to report its distribution (a mixture of experts, arXiv 2605.00419). After the turn of a different model, a
model whose server accepts no ids continues from the text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.model import Lost, Model
from cosd_api.decoding.program import Answer
from cosd_api.methods.cost import FINER, ROUNDS, Assumptions, Bounds, Cost, Plan, Reading

Shares = Callable[[Collection[int]], Mapping[int, float]]
"""A function that returns the weights of the models with the given indices."""


async def draw_from_mean(answer: Answer, models: Sequence[Model], given: Shares) -> None:
    """Write an answer whose tokens are drawn from the weighted mean of all models, with the weights `given`."""
    place = 0
    while True:
        model, length = _run(answer, models, given, place)
        with suppress(Lost):  # if the model is lost, a different model is chosen for this place
            passage = await model.write(length, draw=("draw", place))
            place += len(passage.tokens)
            if passage.tokens:
                share = _shares(answer, given)[model.index]
                entry = Contender((model.index - 1,), passage.data, passage.ends)
                segment = DecidedSegment((entry,), 0, f"{model.name} was drawn, of weight {share:.3g}")
                answer.append(passage, segment)
            answer.end_if_stuck(passage)


def _run(answer: Answer, models: Sequence[Model], given: Shares, place: int) -> tuple[Model, int]:
    """Lines 1 and 3: choose the model for a place; return it with the number of consecutive places it gets."""
    model, length = _model(answer, given, place), 1
    while length < answer.left and _model(answer, given, place + length) == model:
        length += 1
    return models[model], length


def _model(answer: Answer, given: Shares, place: int) -> int:
    """Line 1: choose the model for one place; places are counted in tokens."""
    shares = _shares(answer, given)
    # After a model is lost, a new random number is needed, because the old one is known to select that model.
    lost = [model for model in range(answer.count) if model not in shares]
    chance = answer.chance.number("model", place, *lost)
    below = 0.0
    for model, share in shares.items():
        below += share
        if chance < below:
            return model
    return max(model for model, share in shares.items() if share)  # rounding kept the sum below `chance`


def _shares(answer: Answer, given: Shares) -> Mapping[int, float]:
    return given([model.index for model in answer.models])


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
