"""Route: the model with the lowest perplexity on the prompt answers alone.

::

    1   every model scores the prompt in one request; the score is the mean negative
        log-likelihood of the prompt's tokens in the model's own encoding                          `prompt_nlls`
    2   the weight of a model is the softmax, over the models, of -mean / tau                      `weights`
    3   the model with the lowest mean, and so with the largest weight, answers; if several
        are equal, the first one listed                                                            `chosen`

This is the first half of PackLLM (arXiv 2404.11531), which uses the perplexity of the prompt as a measure of a model's
competence. PackLLM uses the weights to mix the models' distributions. In `Route`, the model with the largest weight
writes the whole answer, and all weights are recorded.

The module `cosd_api.methods.prompt_weights` defines steps 1 and 2. A model that cannot score the prompt answers only if
no other model can score it either.

With `on_assistant_error="draft"`, a model that fails is left out. If the model was already writing the answer, the next
best model continues the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, ClassVar

from cosd_api.extend import (
    FINER,
    HIGHEST_SCORED,
    SCORED,
    Answer,
    Assumptions,
    Bounds,
    Contender,
    Cost,
    DecidedSegment,
    Lost,
    Model,
    Plan,
    Program,
    Reading,
    RoleNeeds,
    check_positive,
    prompt_nlls,
    prompt_weights,
)

ROUNDING = 1e-9
"""The largest relative difference between two means at which the models count as equal."""

_TWICE = 2  # the largest number of requests for the answer, because its last token may need a second request


@dataclass(frozen=True, kw_only=True)
class Route(Program):
    """Route: the model with the lowest perplexity on the prompt answers alone.

    The perplexity is PackLLM's measure of a model's competence (arXiv 2404.11531). The method needs two or more models
    with any tokenizers, each of which scores text (`Capabilities.score`). Every model scores the prompt once, and one
    of them answers. The answer streams token by token. The scores in `FusionResult.segments` include each model's
    weight.

    Attributes:
        tau: the temperature of the recorded weights, above 0. The weights are the softmax of -NLL / tau, where NLL is
            the mean negative log-likelihood of the prompt. `tau` does not affect which model answers.

    Raises:
        SettingError: tau is not a number above 0.
    """

    name: ClassVar[str] = "route"
    decides: ClassVar[str] = "the perplexity of the prompt"
    symmetric: ClassVar[bool] = True

    needs: ClassVar[RoleNeeds] = {"models": ("scores",)}

    tau: Annotated[float, check_positive] = 1.0

    async def write(self, answer: Answer, *models: Model) -> None:
        """Write the answer."""
        means = await prompt_nlls(answer)
        while True:
            heard = {model.index: means.get(model.index) for model in answer.models}
            best = chosen(heard)
            with suppress(Lost):
                await models[best].finish(self._segment(models, heard, best))

    def _segment(self, models: Sequence[Model], means: Mapping[int, float | None], winner: int) -> DecidedSegment:
        """Return the record of the choice, with the weight and the mean of each model."""
        shares = prompt_weights(means, self.tau)
        entries = [
            Contender((model - 1,), b"", False, _only(model, shares[model], len(models)), mean)
            for model, mean in means.items()
        ]
        return DecidedSegment(tuple(entries), [*means].index(winner), _reason(models, means, shares, winner))

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:  # noqa: ARG002 - the same for all
        """Forecast the cost of scoring the prompt, and of the answers that this model writes; see `Method.cost`."""
        n, share = plan.max_tokens, 1 / plan.models
        asked, read = prompt.scored(0, prompt.expected)
        most_asked, most_read = prompt.most_scored(0, prompt.most)
        high = most_read + _TWICE * (prompt.most + FINER * n)
        tokens = Bounds(1, read + share * (prompt.expected + n), high)
        return Cost(Bounds(1, asked + share, most_asked + _TWICE), tokens, share * n)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return Assumptions(
            f"every model scores the prompt, and answers with {plan.max_tokens} tokens once in {plan.models} times; "
            f"{SCORED}",
            f"this model answers, in {_TWICE} requests; {HIGHEST_SCORED}",
        )


def chosen(means: Mapping[int, float | None]) -> int:
    """Step 3: return the model with the lowest mean, or the first if several are equal or no mean is known."""
    best = min((mean for mean in means.values() if mean is not None), default=None)
    if best is None:
        return next(iter(means))
    return next(
        model for model, mean in means.items() if mean is not None and (mean == best or mean - best <= ROUNDING * best)
    )


def _only(model: int, weight: float | None, count: int) -> tuple[float | None, ...]:
    """Return a score for each of `count` models: the weight for one model, and None for all others."""
    return tuple(weight if at == model else None for at in range(count))


def _reason(
    models: Sequence[Model],
    means: Mapping[int, float | None],
    shares: Mapping[int, float | None],
    winner: int,
) -> str:
    own, others = means[winner], [(model, mean) for model, mean in means.items() if model != winner]
    if not others:
        return "no other model is heard"
    if own is None:
        return "no model could measure the prompt: the first listed answers"
    known = [(model, mean) for model, mean in others if mean is not None]
    words = f"mean NLL of the prompt {own:.4g} (weight {shares[winner]:.4g})"
    if not known:
        return f"{words}; no other could measure it"
    against = ", ".join(f"{mean:.4g} of {models[model].name} (weight {shares[model]:.4g})" for model, mean in known)
    least = "least" if all(mean > own for _, mean in known) else "least, and listed first:"
    return f"{least} {words} against {against}"
