"""AdaFuse: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, SettingError, fuse
from cosd_providers.errors import BudgetError, ConnectError, UnsupportedError
from cosd_providers.messages import Message
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive import adafuse as naive_adafuse
from naive import cool as naive_cool
from support.drawn import costly
from support.method_files import AT, AdaFuse
from toys import contests

pytestmark = pytest.mark.timeout(400)

SETTINGS = st.builds(
    naive_adafuse.Settings,
    margin=st.sampled_from((0.7, 0.3, 0.0, 1.0)),
    words=st.sampled_from((3, 1, 2)),
    beams=st.sampled_from((3, 1, 2, 5)),
    outliers=st.sampled_from((10.0, 1.3, 3.7)),
)


def method(settings: naive_adafuse.Settings) -> AdaFuse:
    return AdaFuse(margin=settings.margin, words=settings.words, beams=settings.beams, outliers=settings.outliers)


def naive(task: contests.Task, settings: naive_adafuse.Settings, **more: Any) -> naive_cool.Answered:
    limits: dict[str, Any] = {"max_tokens": task.max_tokens, "stop": task.stop}
    return naive_adafuse.adafuse(task.prompt, task.models, settings=settings, **limits, **more)


def tasks() -> st.SearchStrategy[contests.Task]:
    return contests.tasks(longest=24, may_hide_end=False)


@costly(40)
@given(tasks(), SETTINGS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, settings: naive_adafuse.Settings, delays: list[float]
) -> None:
    contests.check(await contests.fused(task, method(settings), delays=delays), naive(task, settings))


@pytest.mark.extended
@costly(40)
@given(tasks(), SETTINGS, st.lists(st.sampled_from(contests.SPLITS), min_size=4, max_size=4))
async def test_words_are_those_of_all_tokenizers(
    task: contests.Task, settings: naive_adafuse.Settings, splits: list[naive_cool.Split]
) -> None:
    result = await contests.fused(task, method(settings), splits=splits)
    contests.check(result, naive(task, settings, splits=splits))


@costly(40)
@given(tasks(), SETTINGS, contests.delays())
async def test_what_is_read_on_is_what_a_new_request_would_write(
    task: contests.Task, settings: naive_adafuse.Settings, delays: list[float]
) -> None:
    task = contests.unique(task)
    result = await contests.fused(task, method(settings), delays=delays, tokenizes=True)
    contests.check(result, naive(task, settings))


@costly(40)
@given(tasks(), SETTINGS, st.data())
async def test_a_model_that_fails_is_left_out_from_there_on(
    task: contests.Task, settings: naive_adafuse.Settings, data: st.DataObject
) -> None:
    fails = data.draw(st.dictionaries(st.integers(1, len(task.models) - 1), st.integers(1, 12)))
    faults = {at: Fault(ConnectError("gone"), request=number) for at, number in fails.items()}
    result = await contests.fused(task, method(settings), faults=faults, on_assistant_error="draft")
    contests.check(result, naive(task, settings, fails=fails))


# ----------------------------------------------------------------------------------------------------------- examples

WORDS = (" a", " the", " cat", " dog", " mouse", ".", " sat", " on", " it")
TOKENS = (b"", *(bytes([n]) for n in range(256)), *(word.encode() for word in WORDS if len(word) > 1))


def model(*probs: dict[str, float], rest: float = 0.001) -> TableModel:
    """A model by position behind the one-token prompt; in the end it ends. What it would not write has a little."""

    def following(ids: Sequence[int]) -> list[float]:
        known = probs[len(ids) - 1] if 0 < len(ids) <= len(probs) else {"": 0.9}
        return [known.get(token.decode("latin-1"), rest) for token in TOKENS]

    return TableModel(TOKENS, following, end_ids=(0,))


ONE = model({" a": 0.5, " the": 0.3, " it": 0.1}, {" cat": 0.9}, {" sat": 0.9}, {".": 0.9})
OTHER = model({" the": 0.9}, {" cat": 0.5, " dog": 0.4}, {" sat": 0.9}, {".": 0.9})


def pair(**options: Any) -> list[ScriptedProvider]:
    return [ScriptedProvider(one, **options) for one in (ONE, OTHER)]


async def fused(**options: Any) -> FusionResult:
    given: dict[str, Any] = {"models": pair(), "method": AT["adafuse"]} | options
    return await fuse("Q", **given)


async def test_a_sure_model_writes_more_words_and_an_unsure_one_has_alternatives() -> None:
    """The first is unsure of its first word, the second of its second."""
    result = await fused()
    first, second, *_ = result.segments
    assert [(one.text, one.sources) for one in first.candidates] == [
        (" a", ("draft",)),
        (" the", ("draft",)),
        (" it", ("draft",)),
        (" the cat", ("assistant",)),
    ]
    winner = first.candidates[first.winner]
    assert winner.text == " the cat"
    assert winner.scores["draft"] == pytest.approx((0.3 * 0.9) ** -0.5)
    assert winner.scores["assistant"] == pytest.approx((0.9 * 0.5) ** -0.5)
    assert winner.mean == pytest.approx((0.3 * 0.9 * 0.9 * 0.5) ** -0.25)
    assert first.reason.startswith("least mean perplexity: 1.694 against ")
    assert [token.source for token in result.tokens][:3] == ["assistant", "assistant", "draft"]
    assert second.candidates[0].sources == ("draft", "assistant")
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    options = {"normalisation": "token", "margin": 0.7, "words": 3, "beams": 3, "outliers": 10.0}
    assert (result.settings.method, result.settings.method_options) == ("adafuse", options)


async def test_where_all_models_are_sure_of_the_same_nothing_is_scored() -> None:
    models = [ScriptedProvider(OTHER), ScriptedProvider(OTHER)]
    result = await fuse("Q", models=models, method=AdaFuse(margin=0.05))
    assert [one.candidates[0].text for one in result.segments] == [" the cat sat", "."]
    assert {one.reason for one in result.segments} == {"all models wrote the same"}
    assert {call.kind for one in models for call in one.calls} == {"generate"}
    assert {call.alternatives for one in models for call in one.calls} == {2}
    alone = await fuse("Q", models=models, method=AdaFuse(beams=1, words=1))
    assert [one.candidates[0].text for one in alone.segments] == [" the", " cat", " sat", "."]


async def test_outliers_among_three_models_are_left_out() -> None:
    def opinion(first: float, second: float) -> TableModel:
        return model({" a": first, " the": second}, rest=0.0)

    three = [opinion(0.99, 0.01), opinion(0.3, 0.7), opinion(0.3, 0.7)]

    async def first(outliers: float) -> FusionResult:
        models = [ScriptedProvider(one) for one in three]
        return await fuse("Q", models=models, method=AdaFuse(outliers=outliers), max_tokens=1)

    kept, left_out = await first(1000.0), await first(10.0)
    assert kept.text == " a"
    assert left_out.text == " the"
    winner = left_out.segments[0].candidates[left_out.segments[0].winner]
    assert winner.mean == pytest.approx(1 / 0.7)


async def test_the_end_may_be_an_alternative() -> None:
    ends = model({" a": 0.5, "": 0.4}, rest=0.0)
    sure = model({"": 1.0}, rest=0.0)
    result = await fuse("Q", models=[ScriptedProvider(ends), ScriptedProvider(sure)], method=AT["adafuse"])
    assert (result.text, result.finish_reason) == ("", "stop")
    assert [(one.text, one.end) for one in result.segments[0].candidates] == [(" a", True), ("", True)]


async def test_it_streams_span_by_span() -> None:
    async with Fusion(models=pair(token_delay=0.01), method=AT["adafuse"]) as fusion, fusion.stream("Q") as stream:
        first = await anext(stream)
        assert first.text == " the"
        texts = [first.text, *[token.text async for token in stream]]
    assert texts == [token.text for token in (await fused()).tokens]


async def test_leaving_early_leaves_no_request_open() -> None:
    models = pair(token_delay=0.02)
    async with Fusion(models=models, method=AT["adafuse"]) as fusion:
        with anyio.move_on_after(0.1):
            await fusion.generate("Q")
    assert [one.open_requests for one in models] == [0, 0]


async def test_a_timeout_keeps_what_was_written() -> None:
    hangs = ScriptedProvider(ONE, faults=[Fault(None, request=7)])
    with pytest.raises(TimeoutError) as found:
        await fused(models=[hangs, *pair()[1:]], timeout=0.5)
    assert found.value.partial.text == " the cat"  # type: ignore[attr-defined]


async def test_a_budget_ends_the_answer_after_whole_spans() -> None:
    with pytest.raises(BudgetError):
        await fused(max_requests=10)
    result = await fused(max_requests=10, on_budget="end")
    assert (result.text, result.finish_reason) == (" the cat", "budget")
    assert result.trace.replay() == " the cat"


async def test_a_stop_string_and_max_tokens() -> None:
    whole = (await fused()).text
    result = await fused(stop=whole[3:6])
    assert (result.text, result.finish_reason, result.stop_reason) == (whole[:3], "stop", whole[3:6])
    short = await fused(max_tokens=2)
    assert (len(short.tokens), short.finish_reason) == (2, "length")
    assert short.trace.replay() == short.text


async def test_a_full_context_ends_the_answer_of_the_one_that_wins() -> None:
    result = await fused(models=pair(context=3))
    assert (result.finish_reason, result.stop_reason) == ("length", "context")


async def test_messages_are_rendered_for_each_model() -> None:
    def template(messages: Sequence[Message]) -> str:
        return messages[-1].content.upper()

    result = await fuse([{"role": "user", "content": "q"}], models=pair(template=template), method=AT["adafuse"])
    assert result.text == (await fused()).text


async def test_a_model_that_fails() -> None:
    def down() -> list[ScriptedProvider]:
        return [*pair()[:1], ScriptedProvider(OTHER, faults=[Fault(ConnectError("gone"))])]

    with pytest.raises(ConnectError, match="gone"):
        await fused(models=down())
    alone = await fused(models=down(), on_assistant_error="draft")
    assert not any(token.verified for token in alone.tokens)
    assert any("assistant failed" in warning for warning in alone.warnings)

    class Mute(ScriptedProvider):
        async def word_splitter(self) -> Any:
            raise ConnectError("gone")

    silent = await fused(models=[*pair()[:1], Mute(OTHER)], on_assistant_error="draft")
    assert silent.text == alone.text
    assert any("from token 1 on" in warning for warning in silent.warnings)


async def test_models_that_cannot_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"top_k": 0}, "the assistant does not list its most probable tokens"),
        ({"top_k": 1}, "the assistant lists at most 2 tokens, and 'adafuse' needs the 3 most probable ones"),
        ({"end_prob": False}, "the assistant does not report the probability of its end of sequence"),
    ]
    for options, words in refused:
        with pytest.raises(UnsupportedError, match=words):
            await fused(models=[*pair()[:1], ScriptedProvider(OTHER, **options)])


def test_settings() -> None:
    for name, value in (("margin", 1.5), ("margin", -0.1), ("words", 0), ("beams", 0), ("outliers", 0.5)):
        with pytest.raises(SettingError, match=name):
            AdaFuse(**{name: value})
    with pytest.raises(SettingError, match="normalisation must be"):
        AdaFuse(normalisation="letters")
    with pytest.raises(SettingError, match="unit means nothing to the method 'adafuse'"):
        Fusion(models=["http://a", "http://b"], method=AT["adafuse"], unit="word")


async def test_an_estimate_holds() -> None:
    async with Fusion(models=pair(), method=AT["adafuse"]) as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                wanted = estimate.endpoints[name]
                assert wanted.requests.low <= usage.requests <= wanted.requests.high
                assert wanted.billed_tokens.low <= usage.billed_tokens <= wanted.billed_tokens.high
