"""CharED: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import CharED, Fusion, FusionResult, SettingError, fuse
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.contract import ServerInfo
from cosd_providers.errors import BudgetError
from cosd_providers.messages import Message
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive import chared as naive_chared
from support.drawn import costly
from toys import contests
from toys import toy_models as toys

pytestmark = pytest.mark.timeout(400)

MANY = 1000


class Listing(ScriptedProvider):
    """Lists its whole vocabulary, however small that is."""

    async def describe(self) -> ServerInfo:
        """The description, with more than the vocabulary has."""
        info = await super().describe()
        top_k = MANY if info.capabilities.probs and self.top_k is None else info.capabilities.top_k
        return replace(info, capabilities=replace(info.capabilities, top_k=top_k))


@st.composite
def weighted(draw: st.DrawFn) -> tuple[contests.Task, tuple[float, ...] | None]:
    """A task, and the weights of its models."""
    task = draw(contests.tasks(longest=24, may_hide_end=False))
    one, count = st.sampled_from((0.0, 1.0, 2.0, 0.3, 5.0)), len(task.models)
    return task, draw(st.none() | st.lists(one, min_size=count, max_size=count).filter(any).map(tuple))


async def fused(
    task: contests.Task, method: CharED, delays: Sequence[float], faults: Mapping[int, int] | None = None, **more: Any
) -> FusionResult:
    """The library's answer."""
    providers = [
        Listing(
            toys.Plain(model),
            request_delay=delays[2 * at],
            token_delay=delays[2 * at + 1],
            faults=[Fault(ConnectError("gone"), request=faults[at])] if faults and at in faults else [],
        )
        for at, model in enumerate(task.models)
    ]
    limits: dict[str, Any] = {"max_tokens": task.max_tokens, "stop": [stop.decode() for stop in task.stop]}
    result = await fuse(task.prompt.decode(), models=providers, method=method, **limits, **more)
    assert all(provider.open_requests == 0 for provider in providers)
    return result


def check(result: FusionResult, wanted: naive_chared.Answered) -> None:
    """The answer is the naive one: its tokens, whose they are, and what was compared."""
    assert [(one.data, one.end) for one in result.tokens] == [(one.data, one.end) for one in wanted.tokens]
    assert result.finish_reason == wanted.finish_reason
    if not (wanted.tokens and wanted.tokens[-1].end):
        assert result.stop_reason == wanted.stop_reason
    names = [result.draft.name, *(one.name for one in result.assistants)]
    sources = [(names.index(got.source), one.source) for got, one in zip(result.tokens, wanted.tokens, strict=True)]
    assert all(one == other for one, other in sources if other >= 0)
    assert len(result.segments) == len(wanted.symbols)
    for segment, symbols in zip(result.segments, wanted.symbols, strict=True):
        differing = [one for one in symbols if {*one.favourites.values()} != {one.symbol}]
        assert len(segment.candidates) == (
            len({*differing[0].favourites.values(), differing[0].symbol}) if differing else 1
        )
        winner = segment.candidates[segment.winner]
        assert winner.end == (symbols[-1].symbol is None)
        assert winner.mean == (pytest.approx(1 / differing[0].means[differing[0].symbol]) if differing else None)
    usage = [result.usage[name].requests for name in names]
    assert usage == [wanted.asked[at] for at in range(len(names))]
    warned = [words for words in result.warnings if "a single token" in words]
    assert [words.split()[0] for words in warned] == ([str(wanted.alone)] if wanted.alone else [])
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


@costly(40)
@given(weighted(), contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    drawn: tuple[contests.Task, tuple[float, ...] | None], delays: list[float]
) -> None:
    task, weights = drawn
    result = await fused(task, CharED(weights=weights), delays)
    wanted = naive_chared.chared(task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, weights=weights)
    check(result, wanted)


@costly(40)
@given(contests.tasks(longest=24, may_hide_end=False), contests.delays(), st.data())
async def test_a_model_that_fails_is_left_out_from_there_on(
    task: contests.Task, delays: list[float], data: st.DataObject
) -> None:
    fails = data.draw(st.dictionaries(st.integers(1, len(task.models) - 1), st.integers(1, 12)))
    result = await fused(task, CharED(), delays, fails, on_assistant_error="draft")
    check(
        result, naive_chared.chared(task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, fails=fails)
    )


# ----------------------------------------------------------------------------------------------------------- examples


def table(*probs: dict[bytes, float], more: Sequence[bytes] = ()) -> TableModel:
    """A model by what it has written behind "Q", byte by byte or longer; then it ends."""
    letters = [bytes([n]) for n in range(256)]
    tokens = [b"", *letters, *dict.fromkeys([*more, *(data for one in probs for data in one if len(data) > 1)])]

    def following(ids: Sequence[int]) -> list[float]:
        known = probs[len(ids) - 1] if 0 < len(ids) <= len(probs) else {b"": 1.0}
        return [known.get(token, 0.0) for token in tokens]

    return TableModel(tokens, following, end_ids=(0,))


ONE = table({b"the": 0.6, b"to": 0.4}, {b" cat": 1.0})
OTHER = table({b"t": 0.7, b"s": 0.3}, {b"o": 0.9, b"h": 0.1}, {b" dog": 0.8, b"": 0.2})
"""Of two tokenizers. The second reads "to" as two tokens, and "the" as three."""


def pair(*more: TableModel, **options: Any) -> list[ScriptedProvider]:
    return [ScriptedProvider(one, **options) for one in (ONE, OTHER, *more)]


async def test_the_mean_is_taken_byte_by_byte_over_two_tokenizers() -> None:
    models = pair()
    result = await fuse("Q", models=models, method="chared")
    # t: (1 + 0.7) / 2. Then "o" (0.4 + 0.9) / 2 against "h" (0.6 + 0.1) / 2. A space: (1 + 0.8) / 2. Then "c" and "d"
    # are equally probable.
    assert [token.text for token in result.tokens][:2] == ["t", "o"]
    first, second, third, *_ = result.segments
    assert [one.text for one in first.candidates] == ["t"]
    assert first.reason == "all models find the same most probable"
    assert [(one.text, one.sources) for one in second.candidates] == [("o", ("assistant",)), ("he", ("draft",))]
    assert [one.mean for one in second.candidates] == pytest.approx([1 / 0.65, 1 / 0.35])
    assert second.candidates[0].scores == {"draft": pytest.approx(2.5), "assistant": pytest.approx(1 / 0.9)}
    assert second.reason == "largest mean probability: 0.65 against 0.35"
    assert result.tokens[1].source == "assistant"
    assert result.tokens[1].assistant_prob == pytest.approx(0.9)
    assert [one.text for one in third.candidates] == [" c", " dog"]
    assert third.reason == "largest mean probability: 0.5 against 0.5, after ' '"
    assert (result.settings.method, result.settings.unit) == ("chared", None)
    assert result.settings.method_options == {"weights": None, "listed": 20}
    assert result.acceptance_rate is None
    assert result.trace.replay() == result.text
    assert all(call.max_tokens == 1 and call.alternatives == 19 for model in models for call in model.calls)


async def test_both_branches_are_kept_where_a_token_may_end() -> None:
    """Behind "a" the first model has ended by 0.3, and goes on with "b" by 0.7, or with what it says next."""
    one = table({b"ab": 0.7, b"a": 0.3}, {b"c": 1.0})
    same = ScriptedProvider(one)
    result = await fuse("Q", models=[same, ScriptedProvider(one)], method="chared")
    assert [token.text for token in result.tokens] == ["a", "b", "c", ""]
    assert [call.text for call in same.calls] == [b"", b"a", b"ab", b"abc"]
    assert result.tokens[1].draft_prob == pytest.approx(0.7)
    few = table({b"ab": 0.9995, b"a": 0.0005}, {b"c": 1.0})
    rare = ScriptedProvider(few)
    result = await fuse("Q", models=[rare, ScriptedProvider(few)], method="chared")
    assert [token.text for token in result.tokens] == ["ab", "c", ""]
    assert [call.text for call in rare.calls] == [b"", b"ab", b"abc"]


async def test_a_model_whose_branches_die_begins_again_and_waits_for_a_whole_character() -> None:
    sure = table({"é".encode(): 1.0}, {b"x": 1.0})
    unsure = table({b"a": 0.6, "è".encode(): 0.4}, {b"x": 1.0})
    models = [ScriptedProvider(sure), ScriptedProvider(unsure)]
    result = await fuse("Q", models=models, method="chared")
    assert result.text == "éx"
    assert [call.text for call in models[1].calls][:2] == [b"", "é".encode()]
    assert result.segments[0].candidates[1].text == "a"
    away = table({b"a": 0.6, b"b": 0.4}, {b"x": 1.0})
    models = [ScriptedProvider(sure), ScriptedProvider(away)]
    result = await fuse("Q", models=models, method=CharED(weights=(2, 1)))
    assert result.text == "éx"
    assert [call.text for call in models[1].calls][:2] == [b"", "é".encode()]


async def test_weights_decide_and_of_equal_means_the_first_model() -> None:
    one, other = table({b"a": 0.6, b"b": 0.4}), table({b"b": 0.6, b"a": 0.4})

    async def first(*models: TableModel, **options: Any) -> str:
        return (await fuse("Q", models=[ScriptedProvider(m) for m in models], method=CharED(**options))).text

    assert [await first(one, other), await first(other, one)] == ["a", "b"]
    assert [await first(one, other, weights=(1, 2)), await first(one, other, weights=(2, 1))] == ["b", "a"]
    assert await first(one, other, other) == "b"
    ends = table({b"": 0.5, b"a": 0.5})
    assert await first(ends, ends) == ""


async def test_only_the_listed_tokens_count() -> None:
    many = {bytes([ord("A") + n]): 1 / 32 for n in range(32)}
    one = table({**many, b"abc": 0.0})
    models = [ScriptedProvider(one), ScriptedProvider(one)]
    result = await fuse("Q", models=models, method=CharED(listed=20), max_tokens=1)
    assert result.tokens[0].draft_prob == pytest.approx(1 / 20)
    result = await fuse("Q", models=models, method=CharED(listed=30), max_tokens=1)
    assert result.tokens[0].draft_prob == pytest.approx(1 / 30)


async def test_a_character_of_several_tokens_counts_as_certain_and_that_is_said() -> None:
    one = table({b"\xc3": 0.6, b"a": 0.4}, {b"\xa9": 0.9, b"a": 0.1})
    other = table({b"a": 0.6, b"\xc3": 0.4}, {b"x": 1.0})
    result = await fuse("Q", models=[ScriptedProvider(other), ScriptedProvider(one)], method="chared", max_tokens=1)
    assert result.text == "a"  # certain, too: its other token is part of a character, and those are not listed
    result = await fuse("Q", models=[ScriptedProvider(one), ScriptedProvider(one)], method="chared", max_tokens=1)
    assert result.text == "é"
    [words] = result.warnings
    assert words.startswith("2 times a model listed a single token, as with one character of several tokens")


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(models=pair(), method="chared")
    async with fusion, fusion.stream("Q") as stream:
        texts = [token.text async for token in stream]
    assert texts == [token.text for token in (await fuse("Q", models=pair(), method="chared")).tokens]


async def test_leaving_early_leaves_no_request_open() -> None:
    models = pair(request_delay=0.02)
    async with Fusion(models=models, method="chared") as fusion:
        with anyio.move_on_after(0.05):
            await fusion.generate("Q")
    assert [model.open_requests for model in models] == [0, 0]


async def test_a_timeout_keeps_what_was_written() -> None:
    hangs = ScriptedProvider(OTHER, faults=[Fault(None, request=2)])
    with pytest.raises(TimeoutError) as found:
        await fuse("Q", models=[*pair()[:1], hangs], method="chared", timeout=0.3)
    assert found.value.partial.text == "t"  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [{"max_requests": 3}, {"max_billed_tokens": 14}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, Any]) -> None:
    result = await fuse("Q", models=pair(), method="chared", on_budget="end", **limit)
    assert (result.finish_reason, result.stop_reason) == ("budget", next(iter(limit)))
    assert result.text.startswith("t")
    assert result.trace.replay() == result.text
    with pytest.raises(BudgetError):
        await fuse("Q", models=pair(), method="chared", **limit)


async def test_a_stop_string_over_several_tokens() -> None:
    whole = (await fuse("Q", models=pair(), method="chared")).text
    result = await fuse("Q", models=pair(), method="chared", stop=whole[1:4])
    assert (result.text, result.finish_reason, result.stop_reason) == (whole[:1], "stop", whole[1:4])


async def test_a_context_that_is_full_ends_the_answer() -> None:
    for at, text in enumerate(("to", "t")):
        models = pair()
        models[at].context = 2
        result = await fuse("Q", models=models, method="chared")
        assert (result.text, result.finish_reason, result.stop_reason) == (text, "length", "context")


async def test_messages_are_rendered_for_each_model() -> None:
    def template(messages: Sequence[Message]) -> str:
        return messages[-1].content.upper()

    models = pair(template=template)
    result = await fuse([{"role": "user", "content": "q"}], models=models, method="chared", max_tokens=2)
    assert result.text == "to"


async def test_models_that_cannot_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"top_k": 0}, "the assistant does not list its most probable tokens, which 'chared' compares"),
        ({"probs": False}, "the assistant does not list its most probable tokens"),
        ({"top_k": 5}, "the assistant lists at most 6 tokens, and 'chared' needs the 20 most probable ones"),
        ({"end_prob": False}, "the assistant does not report the probability of its end of sequence"),
    ]
    for options, words in refused:
        with pytest.raises(UnsupportedError, match=words) as found:
            await fuse("Q", models=[*pair()[:1], ScriptedProvider(OTHER, **options)], method="chared")
        assert 'method="cosd"' in found.value.hint
    with pytest.raises(UnsupportedError, match="needs the 40 most probable ones"):
        await fuse("Q", models=pair(top_k=20), method=CharED(listed=40))


def test_settings() -> None:
    for listed in (19, 0, 2.5, "many"):
        with pytest.raises(SettingError, match="listed must be a whole number of at least 20"):
            CharED(listed=listed)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="weights must be numbers of at least 0"):
        CharED(weights=(0, 0))
    with pytest.raises(SettingError, match="there are 3 weights for 2 models: give one for each"):
        Fusion(models=["http://a", "http://b"], method=CharED(weights=(1, 2, 3)))
    with pytest.raises(SettingError, match="unit means nothing to the method 'chared': it decides by the mean of the"):
        Fusion(models=["http://a", "http://b"], method="chared", unit="word")


async def test_an_estimate_holds() -> None:
    async with Fusion(models=pair(), method="chared") as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high
