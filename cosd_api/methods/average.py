"""Averaging: every token is the most probable token of the weighted mean of all models' distributions.

::

    1   the first model writes a few tokens ahead, greedily: x~_1, x~_2, ...                       `write`
    2   every other model lists its most probable tokens at each of these places                   `write`
    3   E = w_1 M_1 + w_2 M_2 + ... over all tokens that any model lists                           `_means`
    4   x~_i is kept if every model would write it, or if its mean exceeds 1/2                     `_decide`
    5   otherwise, the token with the largest mean is written, which may be x~_i                   `_decide`
    6   if that token is not x~_i, the tokens written ahead after it are thrown away               `write`

A model's probability for an unlisted token is at most 1 minus the sum of its listed probabilities. So each mean has a
lower and an upper bound. The largest mean is *proved* if its lower bound exceeds the upper bound of every other token,
listed or not. While it is not proved, the models are asked for longer lists. If no list becomes longer, the token with
the largest lower bound is written, and a warning reports the number of places where this happened.

If means are equal, x~_i has priority, then the end of sequence, then the token whose bytes sort first.

With `temperature=1`, each token is drawn from E instead; the module `mixture` describes the steps.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from cosd_api.alignment import Unit
from cosd_api.checks import check_count, check_temperature
from cosd_api.common.wording import counted
from cosd_api.decoding.commands import Contender
from cosd_api.decoding.model import Model
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.program import Answer
from cosd_api.errors import SettingError
from cosd_api.methods.base import Method
from cosd_api.methods.cost import FINER, ROUNDS, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.lists import ROUNDING, Key, is_joined, key_of, probs_of
from cosd_api.methods.mean import (
    SURE,
    MeanBounds,
    MeanChoice,
    contender,
    is_proved,
    largest,
    mean_of,
    reason_for,
    token_of,
)
from cosd_api.methods.mixture import cost_of_draws, draw_from_mean, draws_assumptions
from cosd_api.methods.needs import Models, check_sampling, lists_needed
from cosd_api.methods.weighted import Weighted
from cosd_providers.contract import Token
from cosd_providers.errors import UnsupportedError
from cosd_providers.text import readable


@dataclass(frozen=True, kw_only=True)
class Average(Weighted):
    """Average: every token is the most probable token of the weighted mean of all models' distributions.

    This is a baseline of the CoSD paper. The method needs two or more models that share a tokenizer and list their most
    probable tokens. The first model writes ahead, and the other models are asked about every token.

    With `temperature=1`, each token is drawn from that mean (arXiv 2605.00419): a model is selected at random in
    proportion to its weight, and then draws the token from its own distribution. Each model must be able to draw
    tokens, but need not list its most probable tokens. The `seed` of an answer determines both random choices.

    Attributes:
        weights: the weights of the models, in the order of the models; numbers of at least 0, not all 0. Only their
            ratios count. None weighs all models equally; `"route"` weighs them by the perplexity of the prompt.
        tau: the temperature of the weights for `weights="route"`, above 0.
        ahead: the number of tokens that the first model writes before the other models are asked, at least 1. This
            number changes only the cost.
        listed: the number of tokens to list at each place, at least 1. If these tokens do not prove which mean is the
            largest, more tokens are requested. So this number changes only the cost, as long as the endpoints list
            enough tokens.
        temperature: 0 for the most probable token of the mean, 1 to draw the token from the mean. With 1, leave out
            `ahead` and `listed`.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "average"
    accepts: ClassVar[frozenset[str]] = Weighted.accepts | {"unit"}
    decides: ClassVar[str] = "the mean of the models' probabilities"
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    ahead: Annotated[int, check_count] = 8
    listed: Annotated[int, check_count] = 20
    temperature: float = 0.0  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", check_temperature(self.temperature))
        if self.temperature and (self.ahead, self.listed) != (Average.ahead, Average.listed):
            raise SettingError("ahead and listed have no effect if tokens are drawn: leave them out, or temperature")

    def _at(self, temperature: float) -> Method:
        return replace(self, temperature=temperature)

    def options(self) -> dict[str, Any]:
        """Return the method's own settings that apply at its temperature, as a result records them."""
        found = super().options()
        for name in ("ahead", "listed") if self.temperature else ("temperature",):
            del found[name]
        return found

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that lists no tokens or, with `temperature=1`, draws no tokens; see `Method.examine`."""
        if self.temperature:
            check_sampling(models, f"{self.name!r} with a temperature")
        else:
            lists_needed(models, self.name)
        return super().examine(models, unit)

    async def write(self, answer: Answer, *models: Model) -> None:
        """Write one answer."""
        if self.temperature:
            await draw_from_mean(answer, models, self.shares)
        unproved, before = 0, None
        try:
            while True:
                ahead = partial(models[0].write, text=answer.text, after=before)
                before = passage = await ahead(min(self.ahead, answer.left), listed=self.listed)
                lists = await answer.all(partial(Model.choices, passage=passage, listed=self.listed))
                for at in range(len(passage.tokens)):
                    place = {model.index: tokens[at] for model, tokens in lists.items()}
                    choice = await self._chosen(answer, ahead, at, place)
                    unproved += not choice.proved
                    if not answer.choose(choice.token, models[choice.model], choice.segment, passage, at):
                        before = None
                        break
                else:
                    answer.end_if_stuck(passage)
        finally:
            if unproved:
                places = counted(unproved, "place")
                words = f"at {places} the endpoints list too little to prove which token has the largest mean"
                answer.warn(f"{words}: the largest that is known was taken")

    async def _chosen(self, answer: Answer, ahead: WritesAhead, at: int, place: Listing) -> MeanChoice:
        """Lines 4 and 5: choose a token; request longer lists until the choice is proved, or no list grows."""
        choice, listed = self._decide(answer, place), self.listed
        while not choice.proved:
            listed *= 2
            size, place = _size(place), await self._asked_again(answer, ahead, at, place, listed)
            choice = self._decide(answer, place)
            if _size(place) <= size:
                break
        return choice

    async def _asked_again(self, answer: Answer, ahead: WritesAhead, at: int, place: Listing, listed: int) -> Listing:
        """List more tokens at a place. To do so, the first model writes again from the start of its round."""

        async def ask(model: Model) -> Token | None:
            if model.index:
                return await model.next(place[0], listed=listed)
            tokens = (await ahead(at + 1, listed=listed)).tokens
            return tokens[at] if at < len(tokens) else None

        found = await answer.all(ask)
        return {model.index: _longer(place[model.index], token) for model, token in found.items()}

    def _decide(self, answer: Answer, place: Listing) -> MeanChoice:
        """Lines 3 to 5: choose the token that has the largest mean according to the lists."""
        drafted = place[0]
        assert drafted is not None
        if all(token is not None and key_of(token) == key_of(drafted) for token in place.values()):
            entry = Contender(tuple(model - 1 for model in place), drafted.data, drafted.end)
            return MeanChoice.of(drafted, 0, [entry], "all models write the same")
        for model, token in place.items():
            if token is not None and is_joined(token):
                words = f"the {answer.name(model)} would write {readable(token.data)!r} at byte {len(answer.text)}"
                words += " of the answer, one character of several tokens, whose distributions cannot be averaged"
                raise UnsupportedError(words, hint='method="cosd" compares such characters as a whole.')
        weights = self.shares(place)
        means = _means(place, weights)
        best = largest(means)
        least = means[best].low
        proved = is_proved(best, means) and _unlisted(place, weights) < max(least, ROUNDING)
        return _choice(answer, place, means, best, proved=proved or least > SURE)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        if self.temperature:
            share = self.shares(range(plan.models)).get(model, 0.0)
            return self.with_weights(cost_of_draws(plan, model, share, prompt), prompt)
        n = plan.max_tokens
        expected = 2 * n / self.ahead if model == 0 else n
        written = self.ahead if model == 0 else 1
        high = n * (self.ahead + ROUNDS) * ROUNDS
        tokens = Bounds(
            prompt.least + 1,
            expected * (prompt.expected + n / 2 + written),
            high * (prompt.most + FINER * (n + self.ahead)),
        )
        return self.with_weights(Cost(Bounds(1, expected, high), tokens, expected * written), prompt)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        if self.temperature:
            return self.with_measure(draws_assumptions(plan))
        words = Assumptions(
            f"{plan.max_tokens} tokens; the first model writes {self.ahead} of them in a request, and again after "
            f"every {self.ahead}th; the others are asked about each, in a request of its own that reads all before it",
            f"every token is another one than was written ahead, and a place takes at most {ROUNDS} requests",
        )
        return self.with_measure(words)


WritesAhead = Callable[..., Awaitable[Passage]]
"""Lets the first model write from the start of its round (line 1); see `Model.write`."""

Listing = Mapping[int, Token | None]
"""The most probable token of each model at one place, with its alternatives; None if the model gave no answer."""


def _size(place: Listing) -> int:
    """Return the total number of tokens in all models' lists at a place."""
    return sum(1 + len(token.alternatives) for token in place.values() if token is not None)


def _longer(one: Token | None, other: Token | None) -> Token | None:
    """Return `other` if `one` is None, or if both are the same token and `other` has more alternatives; else `one`."""
    if one is None or other is None:
        return one or other
    return other if key_of(one) == key_of(other) and len(other.alternatives) > len(one.alternatives) else one


def _means(place: Listing, weights: Mapping[int, float]) -> dict[Key, MeanBounds]:
    """Line 3: return bounds on the mean of every listed token: x~ first, then the other tokens sorted by bytes."""
    lists = {model: probs_of(token) for model, token in place.items()}
    # The smallest listed probability is no upper bound for unlisted tokens, because a list may lack a probable token
    # that is only part of a character.
    most = {model: max(0.0, 1 - math.fsum(probs.values())) for model, probs in lists.items()}
    found: dict[Key, MeanBounds] = {}
    drafted, *_ = lists[0]
    for key in (drafted, *sorted({key for probs in lists.values() for key in probs} - {drafted})):
        bounds = {model: MeanBounds(probs.get(key, 0.0), probs.get(key, most[model])) for model, probs in lists.items()}
        found[key] = mean_of((weights[model], one) for model, one in bounds.items())
    return found


def _unlisted(place: Listing, weights: Mapping[int, float]) -> float:
    """Return the largest possible mean of an unlisted token, which has all the probability missing from the lists."""
    return sum(weight * max(0.0, 1 - math.fsum(probs_of(place[model]).values())) for model, weight in weights.items())


def _choice(answer: Answer, place: Listing, means: Mapping[Key, MeanBounds], best: Key, *, proved: bool) -> MeanChoice:
    """Create the choice of the token `best`, with a record of the tokens that were compared with it."""
    writers: dict[Key, list[int]] = {}
    for model, token in place.items():
        if token is not None:
            writers.setdefault(key_of(token), []).append(model)
    models = writers.get(best) or [max(place, key=lambda model: probs_of(place[model]).get(best, 0.0))]
    compared = [key for key in means if key == best or key in writers]
    lists = [probs_of(place.get(model)) for model in range(answer.count)]
    contenders = [
        contender(key, models if key == best else writers[key], [probs.get(key) for probs in lists], means[key])
        for key in compared
    ]
    reason = reason_for(best, means)
    if means[best].low > SURE:
        reason = f"mean probability {means[best].low:.2g} > 0.5"
    elif not proved:
        reason += ", which is not proved"
    token = token_of(best, place.values())
    return MeanChoice.of(token, models[0], contenders, reason, at=compared.index(best), proved=proved)
