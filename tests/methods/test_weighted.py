"""Weights by the prompt: the answer is the one with these weights given by hand, and the result tells them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Average, CharED, Fusion, FusionResult, Safe, SettingError, fuse
from cosd_api.extend import Method
from cosd_api.methods.base import method_from_text
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.contract import ServerInfo
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken
from naive import route as naive_route
from naive import safe as naive_safe
from support.drawn import costly
from support.method_files import Switch
from toys import contests

METHODS = [Average, CharED, partial(Average, temperature=1), Safe, Switch]


def by_hand(task: contests.Task, tau: float) -> list[float]:
    """The weights of the models: softmax(-mean / tau) over the mean NLLs of the prompt."""
    means = [naive_route.prompt_mean(model, task.prompt) for model in task.models]
    if math.isinf(min(means)):
        return [1 / len(means)] * len(means)
    powers = [math.exp((min(means) - mean) / tau) for mean in means]
    return [power / math.fsum(powers) for power in powers]


def told(result: FusionResult) -> list[float]:
    """The weights that a result tells."""
    assert result.weights is not None
    return [result.weights[name] for name in (result.draft.name, *(one.name for one in result.assistants))]


@costly(40)
@given(
    contests.tasks(longest=12, may_hide_end=False).map(contests.unique),
    st.sampled_from((1.0, 0.3, 5.0)),
    contests.delays(),
)
async def test_safe_weighs_by_the_prompt(task: contests.Task, tau: float, delays: list[float]) -> None:
    method = Safe(weights="route", tau=tau)
    result = await contests.fused(task, method, delays=delays, tokenizes=True)
    weights = by_hand(task, tau)
    assert told(result) == pytest.approx(weights)
    limits: Any = {"max_tokens": task.max_tokens, "stop": task.stop}
    wanted = naive_safe.safe(task.prompt, task.models, weights=weights, **limits)
    assert [(one.data, one.end) for one in result.tokens] == [(one.data, one.end) for one in wanted.tokens]
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    assert result.trace.replay() == result.text


# Two models of one tokenizer: the first one finds the prompt less surprising.


def model(prob: float, answer: Sequence[ScriptToken], **options: Any) -> ScriptedProvider:
    """Gives each of the two tokens of the prompt this probability, and answers."""
    scripts: dict[str, Sequence[ScriptToken]] = {"": [("Q", prob), (":", prob)], "Q:": answer}
    return ScriptedProvider.from_texts(scripts, **options)


def pair(**options: Any) -> list[ScriptedProvider]:
    return [model(0.5, [("a", 0.8), "."], **options), model(0.25, [("b", 0.9), "."], **options)]


async def answer(method: Method, **options: Any) -> FusionResult:
    settings: dict[str, Any] = {"unit": "token"} if method.one_tokenizer else {}
    settings |= {"seed": 1} if method.temperature else {}
    settings |= {"models": pair(), "method": method}
    return await fuse("Q:", **settings | options)


@pytest.mark.parametrize("made", METHODS)
@pytest.mark.parametrize("tau", [1.0, 0.5])
async def test_every_method_with_weights_takes_those_of_the_prompt(made: Any, tau: float) -> None:
    ratio = (0.5 / 0.25) ** (1 / tau)
    weights = (ratio / (1 + ratio), 1 / (1 + ratio))
    models = pair()
    result = await answer(made(weights="route", tau=tau), models=models)
    given_by_hand = await answer(made(weights=weights))
    assert told(result) == pytest.approx(weights)
    assert [(one.data, one.source) for one in result.tokens] == [(one.data, one.source) for one in given_by_hand.tokens]
    assert given_by_hand.weights is None
    assert [call.kind for call in models[0].calls[:1]] == ["score"]
    options = result.settings.method_options
    assert (options["weights"], options["tau"]) == ("route", tau)
    assert "tau" not in given_by_hand.settings.method_options


async def test_a_model_that_cannot_measure_the_prompt_weighs_nothing() -> None:
    unsure = [model(0.5, [("a", 0.8)]), model(0.0, [("b", 1.0)])]
    assert told(await answer(Average(weights="route"), models=unsure)) == [1, 0]
    neither = [model(0.0, [("a", 0.8)]), model(0.0, [("b", 1.0)])]
    assert told(await answer(Average(weights="route"), models=neither)) == [0.5, 0.5]


async def test_a_model_that_fails_to_score_is_left_out() -> None:
    down = [pair()[0], model(0.9, ["b"], faults=[Fault(ConnectError("gone"))])]
    with pytest.raises(ConnectError, match="gone"):
        await answer(Safe(weights="route"), models=down)
    down = [pair()[0], model(0.9, ["b"], faults=[Fault(ConnectError("gone"))])]
    result = await answer(Safe(weights="route"), models=down, on_assistant_error="draft")
    assert (result.text, result.weights) == ("a.", {"draft": 1.0})


@pytest.mark.parametrize("made", METHODS)
async def test_an_estimate_holds(made: Any) -> None:
    method = made(weights="route")
    settings: dict[str, Any] = {"unit": "token"} if method.one_tokenizer else {}
    async with Fusion(models=pair(), method=method, **settings) as fusion:
        estimate = await fusion.estimate("Q:", max_tokens=4)
        result = await fusion.generate("Q:", max_tokens=4)
    assert any("every model scores the prompt first" in words for words in estimate.assumptions)
    for name, usage in result.usage.items():
        one = estimate.endpoints[name]
        assert one.requests.low <= usage.requests <= one.requests.high
        assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high


async def test_a_model_that_does_not_score_is_refused() -> None:
    class Silent(ScriptedProvider):
        async def describe(self) -> ServerInfo:
            info = await super().describe()
            return replace(info, capabilities=replace(info.capabilities, score=False))

    silent = Silent(pair()[1].model)
    with pytest.raises(UnsupportedError, match=r"the assistant does not report the probabilities of a given text"):
        await answer(Average(weights="route"), models=[pair()[0], silent])


def test_settings() -> None:
    with pytest.raises(SettingError, match='tau is the temperature of weights="route"'):
        Average(tau=2)
    with pytest.raises(SettingError, match="tau must be"):
        Average(weights="route", tau=0)
    with pytest.raises(SettingError, match=r"not 'rout'. weights=\"route\" weighs the models by the prompt"):
        Average(weights="rout")  # type: ignore[arg-type]
    assert method_from_text("safe", {"weights": "route", "tau": "2"}) == Safe(weights="route", tau=2.0)
    assert method_from_text("average", {"weights": "2,1"}) == Average(weights=(2.0, 1.0))
