"""Weights of the models, for all methods that weigh the models."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from cosd_api.alignment import Unit
from cosd_api.checks import check_positive
from cosd_api.decoding.answer_job import AnswerJob, Run
from cosd_api.decoding.model import Model
from cosd_api.decoding.program import Answer
from cosd_api.errors import SettingError
from cosd_api.methods.base import Program
from cosd_api.methods.cost import HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Reading
from cosd_api.methods.needs import Models, scores_needed
from cosd_api.methods.prompt_weights import prompt_nlls, prompt_weights

_ROUTE = "route"


@dataclass(frozen=True, kw_only=True)
class Weighted(Program):
    """A method in which each model has a weight.

    Attributes:
        weights: the weights of the models, in the order of the models; numbers of at least 0, not all 0. Only their
            ratios count. None weighs all models equally. `"route"` weighs them by the perplexity of each answer's
            prompt (`prompt_weights`); `FusionResult.weights` records the weights.
        tau: the temperature of the weights for `weights="route"`, above 0.

    Raises:
        SettingError: the weights or `tau` are invalid.
    """

    symmetric: ClassVar[bool] = True

    weights: tuple[float, ...] | Literal["route"] | None = None
    tau: Annotated[float, check_positive] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights == _ROUTE:
            return
        if self.tau != 1:
            raise SettingError('tau is the temperature of weights="route", and means nothing to other weights')
        if self.weights is None:
            return
        numbers = (
            isinstance(self.weights, Sequence)
            and not isinstance(self.weights, str)
            and all(
                isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < math.inf
                for one in self.weights
            )
        )
        if isinstance(self.weights, str) or not numbers or not 0 < _total(self.weights) < math.inf:
            words = f"weights must be numbers of at least 0, not all of them 0; not {self.weights!r}"
            raise SettingError(f'{words}. weights="route" weighs the models by the prompt')
        object.__setattr__(self, "weights", tuple(map(float, self.weights)))

    def check_models(self, count: int) -> None:
        """Check that the number of weights equals the number of models; see `Method.check_models`."""
        super().check_models(count)
        if isinstance(self.weights, tuple) and len(self.weights) != count:
            raise SettingError(f"there are {len(self.weights)} weights for {count} models: give one for each")

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """If `weights="route"`, refuse a model that does not score text; see `Method.examine`."""
        if self.weights == _ROUTE:
            scores_needed(models, _ROUTE)
        return super().examine(models, unit)

    def options(self) -> dict[str, Any]:
        """Return the method's own settings in the form that results record."""
        found = super().options() | {"weights": [*self.weights] if isinstance(self.weights, tuple) else self.weights}
        if self.weights != _ROUTE:
            del found["tau"]
        return found

    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer. With `weights="route"`, the prompt determines the weights."""

        async def write(answer: Answer, *models: Model) -> None:
            await (await self._measured(answer)).write(answer, *models)

        return Answer(job, write)

    async def _measured(self, answer: Answer) -> Self:
        """Return the same method with weights as numbers; with `weights="route"`, they are computed from the prompt.

        The module `prompt_weights` defines these weights: softmax(-mean / tau) over the mean negative log-likelihoods
        of the prompt. A model that cannot score the prompt has weight 0. If no model can score it, all are equal.
        """
        if self.weights != _ROUTE:
            return self
        found = prompt_weights(await prompt_nlls(answer), self.tau)
        given = tuple(found.get(model) or 0.0 for model in range(answer.count))
        made = replace(self, weights=given if any(given) else (1.0,) * answer.count, tau=1.0)
        answer.weights = made.shares([model.index for model in answer.models])
        return made

    def shares(self, heard: Collection[int]) -> dict[int, float]:
        """Return the weights of the models in `heard`, scaled to sum to 1; if all of them are 0, equal weights."""
        given = {model: self.weights[model] if isinstance(self.weights, tuple) else 1.0 for model in heard}
        total = sum(given.values())
        return {model: one / total if total else 1 / len(given) for model, one in given.items()}

    def with_weights(self, cost: Cost, prompt: Reading) -> Cost:
        """If `weights="route"`, add the cost of scoring the prompt to the cost of an answer at one model."""
        if self.weights != _ROUTE:
            return cost
        asked, read = prompt.scored(0, prompt.expected)
        most_asked, most_read = prompt.most_scored(0, prompt.most)
        return cost + Cost(Bounds(1, asked, most_asked), Bounds(1, read, most_read), 0)

    def with_measure(self, words: Assumptions) -> Assumptions:
        """If `weights="route"`, add the assumptions about the cost of scoring the prompt."""
        if self.weights != _ROUTE:
            return words
        own = "; every model scores the prompt first"
        return Assumptions(f"{words.expected}{own}; {SCORED}", f"{words.high}{own}; {HIGHEST_SCORED}")


def _total(weights: Iterable[float]) -> float:
    """Return the sum of the weights; infinity if the sum is too large for a float."""
    try:
        return math.fsum(map(float, weights))
    except OverflowError:
        return math.inf
