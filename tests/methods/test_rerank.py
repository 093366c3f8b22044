"""Reranking whole answers: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, Rerank, SettingError, fuse
from cosd_providers.errors import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, TextModel
from naive import cool as naive_cool
from support.drawn import costly
from toys import contests

pytestmark = pytest.mark.timeout(400)


@costly(40)
@given(contests.tasks(), contests.NORMALISATIONS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, normalisation: Any, delays: list[float]
) -> None:
    wanted = naive_cool.rerank(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, normalisation=normalisation
    )
    contests.check(await contests.fused(task, Rerank(normalisation=normalisation), delays=delays), wanted)


@costly(40)
@given(contests.tasks(), contests.NORMALISATIONS)
async def test_a_models_own_probabilities_are_those_that_it_would_score(
    task: contests.Task, normalisation: Any
) -> None:
    task = contests.unique(task)
    wanted = naive_cool.rerank(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, normalisation=normalisation
    )
    contests.check(await contests.fused(task, Rerank(normalisation=normalisation), tokenizes=True), wanted)


@costly(40)
@given(contests.tasks(), st.data())
async def test_a_model_that_fails_is_left_out_from_there_on(task: contests.Task, data: st.DataObject) -> None:
    assistants = range(1, len(task.models))
    mute = data.draw(st.sets(st.sampled_from(assistants)))
    deaf = data.draw(st.sets(st.sampled_from(assistants))) - mute
    faults = {at: Fault(ConnectError("gone"), request=1) for at in mute}
    faults |= {at: Fault(ConnectError("gone"), request=2) for at in deaf}
    result = await contests.fused(task, Rerank(), faults=faults, on_assistant_error="draft")
    wanted = naive_cool.rerank(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, mute=mute, deaf=deaf
    )
    contests.check(result, wanted)
    scored = bool(result.segments[0].candidates[0].scores)
    lost = {*mute, *deaf} if scored else mute
    assert sum("failed" in warning for warning in result.warnings) == len(lost)
    assert all(token.verified != bool(lost) for token in result.tokens)


LONG = {"Q": [(" a", 0.6), (" b", 0.9), (" c", 0.9)], "Q x": [(" y", 0.9)], "Q a b c": []}


def writer(first: str, prob: float, **options: Any) -> ScriptedProvider:
    """Writes one word; gives the words of others the probability of nothing."""
    return ScriptedProvider.from_texts({"Q": [(first, prob), "."]}, **options)


async def test_an_error_is_raised_by_default_and_the_first_model_is_never_left_out() -> None:
    with pytest.raises(ConnectError, match="gone"):
        await fuse(
            "Q", models=[writer(" a", 0.5), writer(" b", 0.5, faults=[Fault(ConnectError("gone"))])], method="rerank"
        )
    broken = writer(" a", 0.5, faults=[Fault(ConnectError("gone"))])
    with pytest.raises(ConnectError, match="gone"):
        await fuse("Q", models=[broken, writer(" b", 0.5)], method="rerank", on_assistant_error="draft")


async def test_equal_answers_are_not_scored() -> None:
    models = [writer(" a", 0.5), writer(" a", 0.9), writer(" a", 0.2)]
    result = await fuse("Q", models=models, method="rerank")
    assert result.text == " a."
    assert [call.kind for model in models for call in model.calls] == ["generate"] * 3
    (segment,) = result.segments
    assert segment.reason == "all models wrote the same"
    assert segment.candidates[0].sources == ("draft", "assistant 1", "assistant 2")
    assert {token.source for token in result.tokens} == {"draft"}
    assert (result.acceptance_rate, result.replacements, result.iterations) == (None, None, None)


async def test_of_equal_means_the_first_listed_wins() -> None:
    result = await fuse("Q", models=[writer(" a", 0.5), writer(" b", 0.5)], method="rerank")
    assert result.text == " a."
    assert result.segments[0].reason.startswith("least mean perplexity, and listed first: inf against inf")


async def test_the_trace_of_what_was_compared_goes_through_its_file(tmp_path: Any) -> None:
    result = await fuse("Q", models=[writer(" a", 0.5), writer(" b", 0.5)], method="rerank")
    result.trace.save(tmp_path / "trace")
    trace = type(result.trace).load(tmp_path / "trace")
    assert trace.result == result
    assert trace.replay() == " a."


async def test_models_that_score_nothing_are_refused_with_a_method_that_would_work() -> None:
    silent = ScriptedProvider(TextModel({"Q": [" a"]}), probs=False)
    with pytest.raises(
        UnsupportedError, match="the assistant does not report the probabilities of a given text, by which 'rerank'"
    ) as found:
        await fuse("Q", models=[writer(" a", 0.5), silent], method="rerank")
    assert 'method="cosd"' in (found.value.hint or "")


def test_settings() -> None:
    with pytest.raises(SettingError, match='normalisation must be "token" or "byte" or "sum", not \'word\''):
        Rerank(normalisation="word")  # type: ignore[arg-type]
    assert Rerank(normalisation="byte").options() == {"normalisation": "byte"}
    with pytest.raises(SettingError, match="draft_length means nothing to the method 'rerank'"):
        Fusion(models=["http://a", "http://b"], method="rerank", draft_length=3)


async def test_an_estimate_holds() -> None:
    async with Fusion(models=[writer(" a", 0.5), writer(" b", 0.5), writer(" c", 0.5)], method="rerank") as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=5)
            result = await fusion.generate("Q", max_tokens=5)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
                assert usage.requests == one.requests.expected


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_billed_tokens": 6}])
async def test_at_a_limit_the_answer_ends_with_nothing(limit: dict[str, int]) -> None:
    models = [writer(" a", 0.5), writer(" b", 0.5)]
    result = await fuse("Q", models=models, method="rerank", on_budget="end", **limit)  # type: ignore[arg-type]
    assert (result.text, result.finish_reason, result.stop_reason) == ("", "budget", next(iter(limit)))
    assert all(model.open_requests == 0 for model in models)


async def test_a_context_that_is_full_ends_the_answer() -> None:
    models = [writer(" a", 0.5, context=2), writer(" a", 0.5, context=2)]
    result = await fuse("Q", models=models, method="rerank")
    assert (result.text, result.finish_reason, result.stop_reason) == (" a", "length", "context")
